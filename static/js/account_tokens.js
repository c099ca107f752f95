// API tokens of one's own.

import { createToken, revokeToken, tokens as list } from "./account_api.js";
import { actions, choice, fillPart, formDialog, showOnce, table } from "./account_parts.js";
import { dateTime } from "./dates.js";
import { field } from "./dialog.js";
import { button, h } from "./dom.js";
import { Fault } from "./faults.js";
import { tokens as words } from "./strings_account.js";

const SCOPES = ["read", "control", "fork", "admin"];

export async function tokensPart(section, known, attempt) {
  const found = await list();
  const redo = () => tokensPart(section, known, attempt);
  const rows = found.map((token) => {
    const revoke = button(words.revoke, { kind: "danger-hover", on: () => attempt(async () => (await revokeToken(token.id), redo())) });
    revoke.setAttribute("aria-label", words.revokeLabel(token.name, token.id));
    const expires = token.expires === null ? words.never : dateTime(token.expires);
    // Names may be the same; the id is what the command line and the audit log have.
    const name = h("div", {}, h("div", { textContent: token.name }), h("div", { className: "hint mono", textContent: token.id }));
    return [name, token.scopes.join(", "), dateTime(token.created), expires, token.used === null ? words.notUsed : dateTime(token.used), actions(revoke)];
  });
  const content = found.length ? table(words.title, words.columns, rows) : h("p", { textContent: words.none });
  fillPart(section, words, content, button(words.create, { kind: "primary", on: () => openCreate(known, () => attempt(redo)) }));
}

function openCreate(known, redo) {
  const name = h("input", { type: "text", maxLength: 100, autocomplete: "off" });
  const boxes = SCOPES.filter((scope) => known.scopes.includes(scope)).map((scope) => {
    const box = h("input", { type: "checkbox", value: scope, checked: scope === "read" });
    return h("label", { className: "check" }, box, h("span", { textContent: `${scope}: ${words.scopeNotes[scope]}` }));
  });
  const scopes = h("fieldset", { className: "checks" }, h("legend", { textContent: words.scopes }), ...boxes);
  const life = choice(words.choices, 30);
  const dialog = formDialog(words.create, [field(words.name, name, words.nameHint), scopes, field(words.expires, life)], words.create, async () => {
    const chosen = boxes.map((label) => label.querySelector("input")).filter((box) => box.checked).map((box) => box.value);
    if (!name.value.trim()) throw new Fault(words.noName, name);
    if (!chosen.length) throw new Fault(words.noScope, boxes[0].querySelector("input"));
    const days = Number(life.value);
    const made = await createToken({ name: name.value.trim(), scopes: chosen, days: days || null });
    showOnce(dialog, words.once, made.token);
    redo();
  }, { named: { name, days: life } });
  name.focus();
}
