// Requests to the portal. The session key proves that it is this page, not a server elsewhere that was handed the cookie.

const KEY = "tclone-key";
const NEXT = "tclone-next";

export class ApiError extends Error {
  constructor(status, code, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

export const sessionKey = () => localStorage.getItem(KEY);

export function keepKey(key) {
  localStorage.setItem(KEY, key);
}

/** Forget the session and show the login; after it, this page again. */
export function toLogin() {
  localStorage.removeItem(KEY);
  if (location.pathname.startsWith("/w/")) sessionStorage.setItem(NEXT, location.pathname);
  location.replace("/login");
}

export function pageAfterLogin() {
  const next = sessionStorage.getItem(NEXT);
  sessionStorage.removeItem(NEXT);
  return next && /^\/w\/ws-\d+$/.test(next) ? next : "/";
}

/** One request; its JSON (or text) answer. Throws ApiError with a message fit to be shown. */
export async function request(method, path, body) {
  const headers = { "X-TClone-Key": sessionKey() ?? "" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", redirect: "error" });
  } catch {
    throw new ApiError(0, "offline", "The portal does not answer. Check that it is running, then retry.");
  }
  if (response.ok) {
    if (response.status === 204) return null;
    return response.headers.get("Content-Type")?.startsWith("application/json") ? response.json() : response.text();
  }
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // an answer without our JSON: the status is all there is
  }
  if (error.code === "login") toLogin();
  const message = typeof error.message === "string" ? error.message : `The portal answered with status ${response.status}.`;
  throw new ApiError(response.status, error.code ?? "unknown", message, Number(response.headers.get("Retry-After")) || null);
}

const one = (id) => `/api/v1/workspaces/${encodeURIComponent(id)}`;

export const login = (user, password) => request("POST", "/api/v1/login", { user, password });
export const logout = () => request("POST", "/api/v1/logout");
export const launch = (wanted) => request("POST", "/api/v1/workspaces", wanted);
export const fork = (id, options) => request("POST", `${one(id)}/fork`, options);
export const discard = (id) => request("DELETE", one(id));
export const logs = (id, tail) => request("GET", `${one(id)}/logs?tail=${tail}`);
export const ticket = (id) => request("POST", `${one(id)}/ticket`);
export const images = () => request("GET", "/api/v1/images");
export const build = (name) => request("POST", `/api/v1/images/${encodeURIComponent(name)}/build`);
