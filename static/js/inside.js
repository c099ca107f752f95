// What the panels of a workspace's page ask the portal. Paths are percent-encoded bytes throughout: names need not be UTF-8.

import { ApiError, request, sessionKey } from "./api.js";
import { files as words } from "./strings_panels.js";

/** Where a workspace is in the API. */
export const one = (id) => `/api/v1/workspaces/${encodeURIComponent(id)}`;

export const listeners = async (id) => (await request("GET", `${one(id)}/listeners`)).listeners;
export const publish = (id, port) => request("POST", `${one(id)}/ports/${port}`);
export const unpublish = (id, port) => request("DELETE", `${one(id)}/ports/${port}`);
export const stats = (id) => request("GET", `${one(id)}/stats`);
export const list = (id, path) => request("GET", `${one(id)}/files?path=${path}`);
export const makeDirectory = (id, path) => request("POST", `${one(id)}/directories?path=${path}`);
export const remove = (id, path, recursive) => request("DELETE", `${one(id)}/files?path=${path}${recursive ? "&recursive=1" : ""}`);
export const compareFile = (id, path, base) => request("GET", `${one(id)}/diff/file?path=${path}&base=${encodeURIComponent(base)}`);
export const terminalAddress = (id) => `wss://${location.host}${one(id)}/terminal`;

/** `{changes, done}`; with `own` what the desktop writes by itself is among the changes, too. */
export async function compare(id, base, own) {
  const text = await request("GET", `${one(id)}/diff?base=${encodeURIComponent(base)}${own ? "&own=1" : ""}`);
  const lines = text.trim().split("\n").map((line) => JSON.parse(line));
  const done = lines.pop()?.done;
  if (!done) throw new ApiError(0, "cut", words.cut);
  return { changes: lines, done };
}

/** A name as a path takes it. A half character that a system let through becomes a question mark. */
export const encodeName = (name) => encodeURIComponent(name.toWellFormed?.() ?? name);

/** A path for people. */
export function decoded(path) {
  try {
    return decodeURIComponent(path);
  } catch {
    return path; // not UTF-8: its bytes are told
  }
}

export const joined = (directory, name) => (directory === "/" ? `/${name}` : `${directory}/${name}`);
export const parentOf = (path) => path.slice(0, path.lastIndexOf("/")) || "/";

/** Send a file; `onProgress(bytes)` meanwhile. The answer has `promise` and `abort()`. */
export function upload(id, path, file, { overwrite = false, onProgress = () => {} } = {}) {
  const call = new XMLHttpRequest();
  const promise = new Promise((resolve, reject) => {
    call.upload.addEventListener("progress", (event) => onProgress(event.loaded));
    call.addEventListener("load", () => {
      let answer = {};
      try {
        answer = JSON.parse(call.responseText);
      } catch {
        // no JSON: the status is all there is
      }
      if (call.status < 300) resolve(answer);
      else reject(new ApiError(call.status, answer.error?.code ?? "unknown", answer.error?.message ?? words.status(call.status)));
    });
    call.addEventListener("error", () => reject(new ApiError(0, "offline", words.broken)));
    call.addEventListener("abort", () => reject(new ApiError(0, "aborted", words.stopped)));
  });
  call.open("PUT", `${one(id)}/file?path=${path}${overwrite ? "&overwrite=1" : ""}`);
  call.setRequestHeader("X-TClone-Key", sessionKey() ?? "");
  call.setRequestHeader("Content-Type", "application/octet-stream");
  call.send(file);
  return { promise, abort: () => call.abort() };
}

/** Let the browser save a file: by a form, so that it is streamed to disk and no key is in an address. Throws ApiError. */
export async function download(id, path) {
  // First whether it can be: a form's answer would otherwise replace the page by an error.
  await request("HEAD", `${one(id)}/file?path=${path}`);
  const form = document.createElement("form");
  Object.assign(form, { method: "post", action: `${one(id)}/download`, hidden: true });
  for (const [name, value] of Object.entries({ key: sessionKey() ?? "", path })) {
    form.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
  }
  document.body.append(form);
  form.submit();
  form.remove();
}
