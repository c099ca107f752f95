// The frame of all dialogs: the browser's own modal <dialog>, labelled, closed by Escape, giving the focus back.

import { button, h, prose } from "./dom.js";
import { clearFaults, faultyField, markFault } from "./faults.js";
import { common, names } from "./strings.js";

let counter = 0;

export class Dialog {
  constructor(title, { subtitle = "", className = "" } = {}) {
    counter += 1;
    const labelled = `dialog-title-${counter}`;
    this.title = h("h2", { id: labelled, textContent: title });
    this.subtitle = h("p", { className: "dialog-subtitle", textContent: subtitle, hidden: !subtitle });
    this.body = h("div", { className: "dialog-body" });
    this.error = h("p", { className: "error", attributes: { role: "alert" }, hidden: true });
    this.actions = h("footer", { className: "dialog-actions" });
    this.after = h("div", { className: "dialog-after" });
    this.form = h("form", { method: "dialog", noValidate: true }, this.body, h("div", { className: "dialog-foot" }, this.error, this.actions), this.after);
    const close = button(common.close, { iconName: "close", iconOnly: true, kind: "quiet", on: () => this.close() });
    // A header element would be a second banner of the page.
    const heading = h("div", { className: "dialog-header" }, h("div", {}, this.title, this.subtitle), close);
    this.element = h("dialog", { className: `dialog ${className}`, aria: { labelledby: labelled } }, heading, this.form);
    this.element.addEventListener("close", () => {
      this.element.remove();
      this.onClose?.();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.onSubmit?.();
    });
  }

  show() {
    document.body.append(this.element);
    this.element.showModal();
    return this;
  }

  get isOpen() {
    return this.element.open;
  }

  close() {
    if (this.element.open) this.element.close();
  }

  /** Content and buttons of a step, and what stands below them (the same by the API); the error of the step before goes away. */
  step(body, actions, after = []) {
    this.hideError();
    this.body.replaceChildren(...body);
    this.actions.replaceChildren(...actions);
    this.after.replaceChildren(...after);
  }

  /** Say what went wrong, at the field that it is about when there is one. `fields`: the portal's name of a field to its input. */
  showError(failure, fields = {}) {
    this.error.replaceChildren(...prose(failure.message));
    this.error.hidden = false;
    const input = faultyField(failure, fields);
    if (input) markFault(input, this.error);
  }

  hideError() {
    this.error.hidden = true;
    clearFaults(this.form);
  }
}

/** The dialog's main button; pressing Enter in a field does the same. */
export function submitButton(label, kind = "primary") {
  return h("button", { type: "submit", className: `button ${kind}`, textContent: label });
}

let fields = 0;

/** A labelled field; `hint` is read with it. */
export function field(label, input, hint = "") {
  fields += 1;
  input.id ||= `field-${fields}`;
  const parts = [h("label", { htmlFor: input.id, textContent: label }), input];
  if (hint) {
    const element = h("p", { className: "hint", id: `${input.id}-hint`, textContent: hint });
    input.setAttribute("aria-describedby", element.id);
    parts.push(element);
  }
  return h("div", { className: "field" }, ...parts);
}

/** A row of choices like radio buttons in one frame. `choices`: `[[value, label]]` */
export function segmented(name, legend, choices, chosen) {
  const labels = choices.map(([value, label]) => {
    const input = h("input", { type: "radio", name, value: String(value), checked: value === chosen });
    return h("label", {}, input, h("span", { textContent: label }));
  });
  return h("fieldset", { className: "segmented" }, h("legend", { textContent: legend }), h("div", { className: "segments" }, ...labels));
}

const NAME = /^[a-z0-9]([a-z0-9-]{0,39}[a-z0-9])?$/;

/** Why a name cannot be used, or "". */
export function nameProblem(name) {
  if (!name || (NAME.test(name) && !/^ws-\d+$/.test(name))) return "";
  return names.problem;
}
