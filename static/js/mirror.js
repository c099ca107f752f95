// Mirrored input: mouse and keys over either of two desktops go to both. The portal's page takes the events itself, on a surface over each
// picture, and hands each viewer what to do; no viewer can reach another one.

import { SCREEN } from "./desktop.js";
import { h } from "./dom.js";
import { keysymOf } from "./keysyms.js";
import { MirrorText, isTyped, pastes } from "./mirror_text.js";
import { compare as words } from "./strings.js";

const WHEEL_UP = 1 << 4;
const WHEEL_DOWN = 1 << 3;
const MOST_NOTCHES = 5;
const PIXELS_A_NOTCH = 100;
// The clipboard's text comes within this time after the key that pastes, or not at all.
const PASTE_MS = 150;
// Buttons of a MouseEvent's `buttons` by bit, as the viewer's protocol numbers them: left, right, middle to left, middle, right.
const BUTTONS = [[1, 1], [2, 4], [4, 2]];

const maskOf = (buttons) => BUTTONS.reduce((mask, [bit, theirs]) => (buttons & bit ? mask | theirs : mask), 0);
const clamp = (value, most) => Math.max(0, Math.min(most - 1, Math.round(value)));

export class Mirror {
  #panes;
  #surfaces = [];
  #texts = [];
  #held = new Map();
  // The key that waits for the clipboard's text.
  #pasting = null;
  #pastedAt = -Infinity;

  /** `panes`: tiles, each with `.element` and `.tell(order, rest)` */
  constructor(panes) {
    this.#panes = panes;
    for (const pane of panes) {
      const text = new MirrorText({ type: (typed) => this.#type(typed), press: (keysym) => this.#press(keysym), paste: (pasted) => this.#paste(pasted) });
      const surface = h("div", { className: "mirror-surface" }, text.element);
      const on = (type, handle, options) => surface.addEventListener(type, handle, options);
      for (const type of ["pointermove", "pointerdown", "pointerup"]) on(type, (event) => this.#point(surface, text, event));
      on("wheel", (event) => this.#wheel(surface, event), { passive: false });
      for (const type of ["keydown", "keyup"]) on(type, (event) => this.#key(event));
      on("contextmenu", (event) => event.preventDefault());
      on("focusout", () => this.release());
      pane.element.querySelector(".tile-body").append(surface);
      this.#surfaces.push(surface);
      this.#texts.push(text);
    }
    this.#texts[0].focus();
  }

  /** Let go of everything in both. */
  release() {
    this.#held.clear();
    this.#pasting = null;
    for (const pane of this.#panes) pane.tell("release");
  }

  close() {
    this.release();
    for (const surface of this.#surfaces) surface.remove();
  }

  #tell(order, rest) {
    for (const pane of this.#panes) pane.tell(order, rest);
  }

  /** Where on the desktop an event happened: the picture is as large as the place allows, in its middle. */
  #place(surface, event) {
    const box = surface.getBoundingClientRect();
    const scale = Math.min(box.width / SCREEN.width, box.height / SCREEN.height);
    const x = (event.clientX - box.left - (box.width - SCREEN.width * scale) / 2) / scale;
    const y = (event.clientY - box.top - (box.height - SCREEN.height * scale) / 2) / scale;
    return { x: clamp(x, SCREEN.width), y: clamp(y, SCREEN.height) };
  }

  #point(surface, text, event) {
    if (event.type === "pointerdown") surface.setPointerCapture(event.pointerId);
    // Browsers open a keyboard on the screen only when a finger leaves it.
    if (event.type !== "pointermove") text.focus(event.clientX, event.clientY);
    event.preventDefault();
    this.#tell("point", { ...this.#place(surface, event), mask: maskOf(event.buttons) });
  }

  #wheel(surface, event) {
    event.preventDefault();
    if (!event.deltaY) return;
    const place = this.#place(surface, event);
    const mask = maskOf(event.buttons);
    const notches = Math.max(1, Math.min(MOST_NOTCHES, Math.round(Math.abs(event.deltaY) / PIXELS_A_NOTCH)));
    this.#tell("point", { ...place, mask: mask | (event.deltaY < 0 ? WHEEL_UP : WHEEL_DOWN), wheel: notches });
    this.#tell("point", { ...place, mask, wheel: notches });
  }

  #key(event) {
    const down = event.type === "keydown";
    // What a key comes to is text, which follows: that of an input method, of a dead key, of a keyboard on the screen.
    if (down && isTyped(event)) return;
    // The browser gives the clipboard's text after this event, and only when it may do what the key asks for; the key follows the text.
    const paste = down && !event.repeat && pastes(event);
    // Everything else goes to the desktops, Tab too; Ctrl tapped twice opens the shortcut bar, which is the way out by keyboard.
    if (!paste) event.preventDefault();
    if (down && event.repeat) return;
    // The release of a key is that of what it was when it went down, also when Shift has changed meanwhile.
    const keysym = down ? keysymOf(event) : this.#held.get(event.code);
    if (keysym === null || keysym === undefined) return;
    if (down) this.#held.set(event.code, keysym);
    else this.#held.delete(event.code);
    // No key is overtaken by another.
    this.#endPaste();
    if (paste) {
      this.#pasting = keysym;
      setTimeout(() => this.#endPaste(), PASTE_MS);
    } else this.#tell("key", { keysym, down });
  }

  #type(text) {
    this.#tell("text", { text });
  }

  #press(keysym) {
    for (const down of [true, false]) this.#tell("key", { keysym, down });
  }

  /** Both desktops get the text for their clipboards, then the key that pastes it; null: nothing is to be pasted. */
  #paste(text) {
    if (text === null) this.#pasting = null;
    else if (this.#pasting !== null) {
      if (text) this.#tell("clipboard", { text });
      this.#endPaste();
    } else if (performance.now() - this.#pastedAt > PASTE_MS) this.#type(text);
  }

  /** The key that pastes, if one waits. When the browser gave no text it pastes what each desktop has. */
  #endPaste() {
    if (this.#pasting === null) return;
    this.#tell("key", { keysym: this.#pasting, down: true });
    this.#pasting = null;
    this.#pastedAt = performance.now();
  }
}
