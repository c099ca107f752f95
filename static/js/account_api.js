// The portal's API for users, sessions, tokens and share links.

import { request } from "./api.js";
import { confirmed } from "./confirm.js";

const at = (...parts) => `/api/v1/${parts.map(encodeURIComponent).join("/")}`;

export const me = () => request("GET", at("me"));
export const changePassword = (password, fresh) => confirmed(() => request("POST", at("me", "password"), { password, new_password: fresh }));

export const beginFactor = () => confirmed(() => request("POST", at("me", "factor")));
export const proveFactor = (code) => confirmed(() => request("PUT", at("me", "factor"), { code }));
export const removeFactor = () => confirmed(() => request("DELETE", at("me", "factor")));
export const newRecoveryCodes = () => confirmed(() => request("POST", at("me", "factor", "recovery")));

export const quota = () => request("GET", at("quota"));

export const sessions = () => request("GET", at("sessions"));
export const endSession = (id) => confirmed(() => request("DELETE", at("sessions", id)));
export const endOtherSessions = () => confirmed(() => request("DELETE", at("sessions")));

export const tokens = () => request("GET", at("tokens"));
export const createToken = (wanted) => confirmed(() => request("POST", at("tokens"), wanted));
export const revokeToken = (id) => request("DELETE", at("tokens", id));

export const users = () => request("GET", at("users"));
export const addUser = (wanted) => confirmed(() => request("POST", at("users"), wanted));
export const changeUser = (user, changes) => confirmed(() => request("PATCH", at("users", user), changes));
export const resetPassword = (user) => confirmed(() => request("POST", at("users", user, "password")));
export const removeUser = (user) => confirmed(() => request("DELETE", at("users", user)));
export const removeUsersFactor = (user) => confirmed(() => request("DELETE", at("users", user, "factor")));

export const shares = (id) => request("GET", at("workspaces", id, "shares"));
export const createShare = (id, wanted) => request("POST", at("workspaces", id, "shares"), wanted);
export const revokeShare = (id, share) => request("DELETE", at("workspaces", id, "shares", share));
export const openShare = (secret) => request("POST", at("share"), { secret });

export const enterByProvider = () => request("POST", at("login", "oidc"));
