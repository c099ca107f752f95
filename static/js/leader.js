// Keyboard shortcuts that take no key from a desktop: Ctrl tapped twice opens a bar, and the next key is the page's. Both taps reach the
// desktop like any others. In a desktop's frame the viewer's script notices them (static/viewer/viewer.js); it can only open the bar.

import { button, h } from "./dom.js";
import { openHelp } from "./help.js";
import { keys as words } from "./strings.js";

const TAP_MS = 400;
const TWICE_MS = 600;

/** Calls `found` when Ctrl was tapped twice on this page, outside of frames. */
function followTaps(found) {
  let downAt = 0;
  let clean = false;
  let last = -Infinity;
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Control") [clean, last] = [false, -Infinity];
    else if (!event.repeat) [downAt, clean] = [event.timeStamp, !(event.altKey || event.shiftKey || event.metaKey)];
  }, true);
  window.addEventListener("keyup", (event) => {
    if (event.key !== "Control") return;
    const tap = clean && event.timeStamp - downAt <= TAP_MS;
    if (tap && event.timeStamp - last < TWICE_MS) {
      last = -Infinity;
      found();
    } else last = tap ? event.timeStamp : -Infinity;
  }, true);
}

/** `commands`: `[{keys: ["f"], shown: "F", label, run, enabled?}]`; `back()` gives the focus back to where it was. */
export class Leader {
  #commands;
  #bar = null;
  #back = () => {};

  constructor(commands) {
    this.#commands = [...commands, { keys: ["?"], shown: "?", label: words.commands.help, run: () => openHelp(this.#commands) }];
    followTaps(() => {
      const holder = document.activeElement;
      if (!document.querySelector("dialog[open]")) this.open(() => holder?.focus?.());
    });
  }

  get commands() {
    return this.#commands;
  }

  open(back) {
    if (this.#bar !== null) return;
    this.#back = back;
    const usable = this.#commands.filter((command) => command.enabled?.() ?? true);
    const items = usable.map((command) => button(command.label, { kind: "quiet command", on: () => this.#run(command) }));
    items.forEach((item, index) => item.prepend(h("kbd", { textContent: usable[index].shown })));
    const hint = h("p", { className: "hint", textContent: words.barHint });
    this.#bar = h("div", { className: "command-bar", tabIndex: -1, attributes: { role: "dialog", "aria-label": words.barTitle } }, h("div", { className: "commands" }, ...items), hint);
    this.#bar.addEventListener("keydown", (event) => this.#onKey(event));
    this.#bar.addEventListener("focusout", (event) => this.#bar?.contains(event.relatedTarget) || this.#close());
    document.body.append(this.#bar);
    // A frame keeps the keys until another element of this page has them.
    window.focus();
    this.#bar.focus();
  }

  #onKey(event) {
    if (["Control", "Shift", "Alt", "Meta", "Tab"].includes(event.key)) return;
    if ((event.key === "Enter" || event.key === " ") && event.target.closest("button")) return;
    event.preventDefault();
    event.stopPropagation();
    const command = this.#commands.find((candidate) => candidate.keys.includes(event.key.length === 1 ? event.key.toLowerCase() : event.key));
    if (command && (command.enabled?.() ?? true)) this.#run(command, event.key);
    else {
      this.#close();
      this.#back();
    }
  }

  #run(command, key = command.keys[0]) {
    this.#close();
    const back = () => document.activeElement === document.body && this.#back();
    if (command.run(key) === false) return;
    // A command that opens a dialog, or chooses another desktop, leads the focus there itself; a dialog would give it back to the bar, which has gone.
    const dialog = document.querySelector("dialog[open]");
    if (dialog) dialog.addEventListener("close", () => setTimeout(back), { once: true });
    else back();
  }

  #close() {
    const bar = this.#bar;
    this.#bar = null;
    bar?.remove();
  }
}
