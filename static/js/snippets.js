// The action of a page as a program would do it: curl and Python, with a placeholder where the API token goes.

import { copied } from "./clipboard.js";
import { h, prose } from "./dom.js";
import { python } from "./snippet_python.js";
import { common, snippets as words } from "./strings.js";

const LANGUAGE_KEY = "tclone-snippet";
// How long the button says what became of a click on it.
const SAID_MS = 2500;

/** A word of a POSIX shell: single quotes, and those inside closed, escaped and opened again. */
const shellWord = (text) => (/^[A-Za-z0-9_./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

const CURL = "curl --fail-with-body --cacert ca.pem";
const JSON_BODY = "-H 'Content-Type: application/json'";
const lines = (parts) => parts.filter(Boolean).join(" \\\n  ");

/** What of a request does not depend on who makes it. */
function curlRest({ method, path, body, send, save }, origin) {
  const parts = [method === "GET" ? "" : `-X ${method}`];
  if (body !== undefined) parts.push(JSON_BODY, `-d ${shellWord(JSON.stringify(body))}`);
  if (send) parts.push("-H 'Content-Type: application/octet-stream'", `--data-binary @${shellWord(send)}`);
  return [...parts, save ? `-o ${shellWord(save)}` : "", shellWord(origin + path)];
}

/** The secret reaches curl by its standard input: what is in a command's arguments every user of the machine can read. */
export function curl(action, origin = location.origin) {
  if (!action.person) return `printf 'Authorization: Bearer %s' "$TCLONE_TOKEN" |\n${lines([CURL, "-H @-", ...curlRest(action, origin)])}`;
  const from = `-H ${shellWord(`Origin: ${origin}`)}`;
  const login = lines([CURL, "-c cookies", from, JSON_BODY, "-d @login.json -o session.json", shellWord(`${origin}/api/v1/login`)]);
  return `${login}\njq -r '"X-TClone-Key: " + .key' session.json |\n${lines([CURL, "-b cookies", from, "-H @-", ...curlRest(action, origin)])}`;
}

const WRITERS = { curl, python };

/** A part of a dialog that folds out. `action()` gives `{method, path, body?, send?, save?, person?}` of the moment: the JSON body, or the file that is
 * sent; the file that the answer goes to; whether only a person's login may do it. Call `refresh()` on it after a change. */
export function snippet(action, { open = false } = {}) {
  const code = h("code");
  const text = h("pre", { className: "snippet-code", tabIndex: 0, aria: { label: words.title } }, code);
  const note = h("p", { className: "hint" });
  let language = localStorage.getItem(LANGUAGE_KEY) in WRITERS ? localStorage.getItem(LANGUAGE_KEY) : "curl";
  const copy = h("button", { type: "button", className: "button small", textContent: common.copy, attributes: { "aria-live": "polite" } });
  const choices = Object.keys(WRITERS).map((name) => h("button", { type: "button", textContent: words[name], on: { click: () => choose(name) } }));
  const bar = h("div", { className: "snippet-bar" }, h("div", { className: "layouts", attributes: { role: "group", "aria-label": words.language } }, ...choices), copy);
  const element = h("details", { className: "snippet", open }, h("summary", { textContent: words.title }), bar, text, note);
  const refresh = () => {
    const now = action();
    code.textContent = WRITERS[language](now);
    note.replaceChildren(...prose(now.person ? words.personNote : words.notes[language]));
    Object.keys(WRITERS).forEach((name, index) => choices[index].setAttribute("aria-pressed", String(name === language)));
  };
  const choose = (name) => {
    language = name;
    localStorage.setItem(LANGUAGE_KEY, name);
    refresh();
  };
  copy.addEventListener("click", async () => {
    copy.textContent = await copied(code.textContent, () => getSelection().selectAllChildren(code));
    setTimeout(() => (copy.textContent = common.copy), SAID_MS);
  });
  refresh();
  return { element, refresh };
}
