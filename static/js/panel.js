// What every panel of a workspace's page has.

import { h, setText } from "./dom.js";

/** The head of a panel: its title, what it has to say, its buttons. */
export function panelHead(title, ...actions) {
  return h("header", { className: "panel-head" }, h("h2", { textContent: title }), h("div", { className: "panel-actions" }, ...actions));
}

/** A line for what happens or went wrong, read politely. */
export class Note {
  element = h("p", { className: "panel-note", attributes: { role: "status" }, hidden: true });

  say(text, kind = "") {
    this.element.className = `panel-note ${kind}`;
    this.element.hidden = !text;
    setText(this.element, text);
  }
}
