// The portal's API for admins: users are in account_api.js.

import { request } from "./api.js";
import { confirmed } from "./confirm.js";

const query = (values) => {
  const known = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
};

export const overview = () => request("GET", "/api/v1/overview");
export const quota = () => request("GET", "/api/v1/quota");
export const settings = () => request("GET", "/api/v1/settings");
export const setSettings = (wanted) => confirmed(() => request("PUT", "/api/v1/settings", wanted));
export const audit = (wanted) => request("GET", `/api/v1/audit?${query(wanted)}`);
export const auditPath = (wanted) => `/api/v1/audit/export?${query(wanted)}`;
