// Mirrored input: mouse and keys over either of two desktops go to both. The portal's page takes the events itself, on a surface over each
// picture, and hands each viewer what to do; no viewer can reach another one.

import { SCREEN } from "./desktop.js";
import { h } from "./dom.js";
import { keysymOf } from "./keysyms.js";
import { compare as words } from "./strings.js";

const WHEEL_UP = 1 << 4;
const WHEEL_DOWN = 1 << 3;
const MOST_NOTCHES = 5;
const PIXELS_A_NOTCH = 100;
// Buttons of a MouseEvent's `buttons` by bit, as the viewer's protocol numbers them: left, right, middle to left, middle, right.
const BUTTONS = [[1, 1], [2, 4], [4, 2]];

const maskOf = (buttons) => BUTTONS.reduce((mask, [bit, theirs]) => (buttons & bit ? mask | theirs : mask), 0);
const clamp = (value, most) => Math.max(0, Math.min(most - 1, Math.round(value)));

export class Mirror {
  #panes;
  #surfaces = [];
  #held = new Map();

  /** `panes`: tiles, each with `.element` and `.tell(order, rest)` */
  constructor(panes) {
    this.#panes = panes;
    for (const pane of panes) {
      const surface = h("div", { className: "mirror-surface", tabIndex: 0, attributes: { role: "application", "aria-label": words.surface } });
      const on = (type, handle, options) => surface.addEventListener(type, handle, options);
      for (const type of ["pointermove", "pointerdown", "pointerup"]) on(type, (event) => this.#point(surface, event));
      on("wheel", (event) => this.#wheel(surface, event), { passive: false });
      for (const type of ["keydown", "keyup"]) on(type, (event) => this.#key(event));
      on("contextmenu", (event) => event.preventDefault());
      on("blur", () => this.release());
      pane.element.querySelector(".tile-body").append(surface);
      this.#surfaces.push(surface);
    }
    this.#surfaces[0].focus({ focusVisible: false });
  }

  /** Let go of everything in both. */
  release() {
    this.#held.clear();
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

  #point(surface, event) {
    if (event.type === "pointerdown") {
      surface.setPointerCapture(event.pointerId);
      surface.focus({ focusVisible: false });
    }
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
    // Everything goes to the desktops, Tab too; Ctrl tapped twice opens the shortcut bar, which is the way out by keyboard.
    event.preventDefault();
    const down = event.type === "keydown";
    if (down && event.repeat) return;
    // The release of a key is that of what it was when it went down, also when Shift has changed meanwhile.
    const keysym = down ? keysymOf(event) : this.#held.get(event.code);
    if (keysym === null || keysym === undefined) return;
    if (down) this.#held.set(event.code, keysym);
    else this.#held.delete(event.code);
    this.#tell("key", { keysym, down });
  }
}
