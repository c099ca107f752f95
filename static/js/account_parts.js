// What the parts of the account page are made of.

import { copied } from "./clipboard.js";
import { Dialog, submitButton } from "./dialog.js";
import { button, h } from "./dom.js";
import { again } from "./strings.js";

/** Heading, note and content of a part. */
export function fillPart(section, { title, note }, ...content) {
  const heading = h("h2", { id: `${section.id}-title`, textContent: title });
  section.replaceChildren(heading, h("p", { className: "hint", textContent: note }), ...content);
}

/** A table whose rows are arrays of texts or nodes; on narrow screens each cell names its column. */
export function table(caption, columns, rows) {
  const head = h("tr", {}, ...columns.map((column) => h("th", { scope: "col", textContent: column })));
  const body = rows.map((row) => h("tr", {}, ...row.map((cell, index) => h("td", { data: { column: columns[index] } }, cell))));
  const label = h("caption", { className: "sr-only", textContent: caption });
  return h("table", { className: "list" }, label, h("thead", {}, head), h("tbody", {}, ...body));
}

/** A list to choose one of; `choices`: `[[value, label]]` */
export const choice = (choices, chosen) =>
  h("select", {}, ...choices.map(([value, label]) => h("option", { value: String(value), textContent: label, selected: value === chosen })));

export const actions = (...buttons) => h("div", { className: "row-actions" }, ...buttons);

/** Show a secret that exists nowhere else, all of it, until it is dismissed. */
export function showOnce(dialog, note, secret) {
  const field = h("textarea", { readOnly: true, value: secret, className: "secret", rows: 1, spellcheck: false, autocomplete: "off", aria: { label: note } });
  const copy = button(again.copy, {
    kind: "primary",
    on: async () => {
      const said = await copied(secret, () => {
        field.focus();
        field.select();
      });
      copy.querySelector("span").textContent = said;
      copy.setAttribute("aria-label", said);
    },
  });
  copy.setAttribute("aria-live", "polite");
  dialog.onSubmit = () => dialog.close();
  dialog.step([h("p", { textContent: note }), field], [copy, submitButton(again.done, "")]);
  // As high as its text; browsers without `field-sizing` would show one line of it.
  field.style.height = `${field.scrollHeight + 2}px`;
  field.focus();
  field.select();
}

/** A dialog whose form does `work` and stays open, with the reason, when that fails. `named`: the portal's name of a field to its input; `after`: what
 * stands below the buttons. */
export function formDialog(title, fields, label, work, { kind = "primary", named = {}, after = [] } = {}) {
  const dialog = new Dialog(title, { className: "narrow" });
  const submit = submitButton(label, kind);
  dialog.step(fields, [button(again.cancel, { on: () => dialog.close() }), submit], after);
  dialog.onSubmit = async () => {
    if (submit.disabled) return;
    submit.disabled = true;
    dialog.hideError();
    try {
      await work(dialog);
    } catch (failure) {
      dialog.showError(failure, named);
    }
    submit.disabled = false;
  };
  return dialog.show();
}
