// The action of a dialog as a program would do it: curl and Python, with a placeholder where the API token goes.

import { h, prose } from "./dom.js";
import { common, snippets as words } from "./strings.js";

const LANGUAGE_KEY = "tclone-snippet";

/** A word of a POSIX shell: single quotes, and those inside closed, escaped and opened again. */
const shellWord = (text) => (/^[A-Za-z0-9_./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

export function curl({ method, path, body }, origin = location.origin) {
  const words = ["curl --fail-with-body --cacert ca.pem", method === "GET" ? "" : `-X ${method}`, '-H "Authorization: Bearer $TCLONE_TOKEN"'];
  if (body !== undefined) words.push("-H 'Content-Type: application/json'", `-d ${shellWord(JSON.stringify(body))}`);
  return [...words, shellWord(origin + path)].filter(Boolean).join(" \\\n  ");
}

/** A Python literal of a JSON value; JSON's strings are Python's. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${literal(item)}`).join(", ")}}`;
  return JSON.stringify(value);
}

export function python({ method, path, body }, origin = location.origin) {
  const request = ["import json, os, ssl, urllib.request", "", "request = urllib.request.Request(", `    ${JSON.stringify(origin + path)},`, `    method=${JSON.stringify(method)},`];
  const type = body === undefined ? "" : ', "Content-Type": "application/json"';
  request.push(`    headers={"Authorization": "Bearer " + os.environ["TCLONE_TOKEN"]${type}},`);
  if (body !== undefined) request.push(`    data=json.dumps(${literal(body)}).encode(),`);
  request.push(")", 'with urllib.request.urlopen(request, context=ssl.create_default_context(cafile="ca.pem")) as answer:');
  return [...request, "    print(answer.read().decode())"].join("\n");
}

const WRITERS = { curl, python };

/** A part of a dialog that folds out. `action()` gives `{method, path, body}` of the moment; call `refresh()` on it after a change. */
export function snippet(action) {
  const code = h("code");
  const text = h("pre", { className: "snippet-code", tabIndex: 0, aria: { label: words.title } }, code);
  let language = localStorage.getItem(LANGUAGE_KEY) in WRITERS ? localStorage.getItem(LANGUAGE_KEY) : "curl";
  const copy = h("button", { type: "button", className: "button small", textContent: common.copy, attributes: { "aria-live": "polite" } });
  const choices = Object.keys(WRITERS).map((name) => h("button", { type: "button", textContent: words[name], on: { click: () => choose(name) } }));
  const bar = h("div", { className: "snippet-bar" }, h("div", { className: "layouts", attributes: { role: "group", "aria-label": words.language } }, ...choices), copy);
  const element = h("details", { className: "snippet" }, h("summary", { textContent: words.title }), bar, text, h("p", { className: "hint" }, ...prose(words.note)));
  const refresh = () => {
    code.textContent = WRITERS[language](action());
    Object.keys(WRITERS).forEach((name, index) => choices[index].setAttribute("aria-pressed", String(name === language)));
  };
  const choose = (name) => {
    language = name;
    localStorage.setItem(LANGUAGE_KEY, name);
    refresh();
  };
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    copy.textContent = common.copied;
    setTimeout(() => (copy.textContent = common.copy), 1500);
  });
  refresh();
  return { element, refresh };
}
