// The audit log: filtered, a page at a time, saved as a file. What it is filtered by stands in the address.

import { choice, fillPart, table } from "./account_parts.js";
import { audit, auditPath } from "./admin_api.js";
import { saveAs } from "./api.js";
import { dateTimeExact } from "./dates.js";
import { field, submitButton } from "./dialog.js";
import { button, h } from "./dom.js";
import { auditLog as words } from "./strings_admin.js";

const PAGE = 100;
const NAMES = ["user", "workspace", "event"];
// Those that have a column of their own.
const SHOWN = ["time", "user", "event", "workspace", "position"];

const shown = (value) => (Array.isArray(value) ? value.join(", ") : typeof value === "object" ? JSON.stringify(value) : value);

/** "address: 192.0.2.7 · role: user", of what else an entry has */
function more(entry) {
  const rest = Object.entries(entry).filter(([name, value]) => !SHOWN.includes(name) && value !== null && value !== "");
  return rest.map(([name, value]) => `${name}: ${shown(value)}`).join(" · ");
}

/** What was done, in words. A promotion that was only asked about has changed nothing. */
const told = ({ event, dry_run: asked }) => (event === "promote" && asked ? words.promoteAsked : words.events[event] ?? event);

const cells = (entry) => [dateTimeExact(entry.time), entry.user ?? "", told(entry), entry.workspace ?? "", more(entry)];

export async function auditPart(section, _, attempt) {
  const text = (placeholder = "") => h("input", { type: "text", autocomplete: "off", autocapitalize: "none", spellcheck: false, maxLength: 100, placeholder });
  const known = Object.entries(words.events).sort(([, one], [, other]) => one.localeCompare(other));
  const inputs = { user: text(), workspace: text(words.workspaceHint), event: choice([["", words.any], ...known], "") };
  const fields = NAMES.map((name) => field(words[name], inputs[name]));
  const save = button(words.save, { iconName: "download", on: () => attempt(() => saveAs(auditPath(wanted()), "audit.jsonl")) });
  const form = h("form", { noValidate: true, className: "filters", aria: { label: words.filter } }, ...fields, submitButton(words.apply), save);
  const list = table(words.title, words.columns, []);
  list.classList.add("audit-list");
  const body = list.querySelector("tbody");
  const older = button(words.older, { on: () => attempt(load) });
  const end = h("p", { className: "hint", attributes: { role: "status" } });
  let last = null;

  const wanted = () => Object.fromEntries(NAMES.map((name) => [name, inputs[name].value.trim()]));

  async function load() {
    const entries = await audit({ ...wanted(), limit: PAGE, before: last });
    body.append(...entries.map((entry) => h("tr", {}, ...cells(entry).map((cell, index) => h("td", { data: { column: words.columns[index] }, textContent: cell })))));
    last = entries.at(-1)?.position ?? last;
    const full = entries.length === PAGE;
    older.hidden = !full;
    list.hidden = body.childElementCount === 0;
    end.textContent = full ? "" : body.childElementCount ? words.end : words.none;
  }

  async function restart() {
    last = null;
    body.replaceChildren();
    await load();
  }

  function fromAddress() {
    const found = new URLSearchParams(location.hash.slice(1));
    for (const name of NAMES) inputs[name].value = found.get(name) ?? "";
    return restart();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const chosen = Object.entries(wanted()).filter(([, value]) => value);
    history.replaceState(null, "", `${location.pathname}${chosen.length ? `#${new URLSearchParams(chosen)}` : ""}`);
    attempt(restart);
  });
  window.addEventListener("hashchange", () => attempt(fromAddress));
  fillPart(section, words, form, h("div", { className: "scrolls" }, list), older, end);
  await fromAddress();
}
