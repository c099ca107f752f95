// Requests to the portal. The session key proves that it is this page, not a server elsewhere that was handed the cookie.

import { connection as words } from "./strings.js";

const KEY = "tclone-key";
const USER = "tclone-user";
const NEXT = "tclone-next";

export class ApiError extends Error {
  /** `field`: the field of the request's body that was wrong, as far as the portal tells. */
  constructor(status, code, message, { retryAfter = null, field = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
    this.field = field;
  }
}

export const sessionKey = () => localStorage.getItem(KEY);

let me = null;
let role = null;

/** Who is logged in here: what the portal says, before it has said it what this browser remembers. */
export const whoAmI = () => me ?? localStorage.getItem(USER) ?? "";

/** Whether that is an admin, as far as is known; the portal decides by itself what one may. */
export const amAdmin = () => role === "admin";

/** Ask the portal who is logged in here. One that does not tell leaves it at what this browser remembers. */
export async function learnWhoAmI() {
  try {
    ({ user: me = null, role = null } = await request("GET", "/api/v1/me"));
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
  }
}

export function keepKey(key, user = "") {
  localStorage.setItem(KEY, key);
  if (user) localStorage.setItem(USER, user);
}

/** Forget the session and show the login; after it, this page again. */
export function toLogin() {
  localStorage.removeItem(KEY);
  if (location.pathname.startsWith("/w/")) nextIsHere();
  location.replace("/login");
}

/** After the next login this page is shown again. */
export const nextIsHere = () => sessionStorage.setItem(NEXT, location.pathname);

/** Everybody has to have a second factor here, and this user has none: it is set up on the account page, and nothing else can be done. */
export function toEnrolment() {
  if (location.pathname !== "/account") location.replace("/account");
}

export function pageAfterLogin() {
  const next = sessionStorage.getItem(NEXT);
  sessionStorage.removeItem(NEXT);
  return next && /^\/(w\/ws-\d+|account|admin\/[a-z]+)$/.test(next) ? next : "/";
}

async function send(method, path, headers, body) {
  try {
    return await fetch(path, { method, headers: { "X-TClone-Key": sessionKey() ?? "", ...headers }, body, credentials: "same-origin", redirect: "error" });
  } catch {
    throw new ApiError(0, "offline", words.offline);
  }
}

async function failureOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // an answer without our JSON: the status is all there is
  }
  if (error.code === "login") toLogin();
  if (error.code === "enrol") toEnrolment();
  const message = typeof error.message === "string" ? error.message : words.status(response.status);
  return new ApiError(response.status, error.code ?? "unknown", message, { retryAfter: Number(response.headers.get("Retry-After")) || null, field: error.field ?? null });
}

/** One request; its JSON (or text) answer. Throws ApiError with a message fit to be shown. */
export async function request(method, path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await send(method, path, headers, body === undefined ? undefined : JSON.stringify(body));
  if (!response.ok) throw await failureOf(response);
  if (response.status === 204) return null;
  return response.headers.get("Content-Type")?.startsWith("application/json") ? response.json() : response.text();
}

/** Have the browser save the answer to a GET under a name. */
export async function saveAs(path, name) {
  const response = await send("GET", path, {});
  if (!response.ok) throw await failureOf(response);
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await response.blob()), download: name });
  link.click();
  // The browser has begun by then; the object lives as long as it is read.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

const one = (id) => `/api/v1/workspaces/${encodeURIComponent(id)}`;

/** `fresh`: a password of one's own, `code`: of the second factor, once they are asked for. */
export const login = (user, password, { fresh, code } = {}) => request("POST", "/api/v1/login", { user, password, new_password: fresh, code });
export const logout = () => request("POST", "/api/v1/logout");
export const launch = (wanted) => request("POST", "/api/v1/workspaces", wanted);
export const fork = (id, options) => request("POST", `${one(id)}/fork`, options);
export const discard = (id) => request("DELETE", one(id));
export const resume = (id) => request("POST", `${one(id)}/resume`);
export const logs = (id, tail) => request("GET", `${one(id)}/logs?tail=${tail}`);
export const ticket = (id) => request("POST", `${one(id)}/ticket`);
export const takeControl = (id, force) => request("POST", `${one(id)}/lease`, { force });
export const handBack = (id) => request("DELETE", `${one(id)}/lease`);
export const keepAlive = (id) => request("POST", `${one(id)}/keepalive`);
export const setLifetime = (id, rules) => request("PUT", `${one(id)}/lifetime`, rules);
export const images = () => request("GET", "/api/v1/images");
export const build = (name) => request("POST", `/api/v1/images/${encodeURIComponent(name)}/build`);

/** `{blob, tag}`, or null when it is still the picture with `tag`. One that is up to `freshMs` old will do. */
export async function picture(id, { width, freshMs, tag }) {
  const path = `${one(id)}/screenshot?format=jpeg&width=${width}&max_age_ms=${freshMs}`;
  const response = await send("GET", path, tag ? { "If-None-Match": tag } : {});
  if (response.status === 304) return null;
  if (!response.ok) throw await failureOf(response);
  return { blob: await response.blob(), tag: response.headers.get("ETag") };
}
