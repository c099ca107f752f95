// A line between two parts of a page that is dragged, or moved by arrow keys, to give one of them more room. Kept in the browser.

import { h } from "./dom.js";

const STEP = 16;
const PAGE = 64;

export class Divider {
  #key;
  #least;
  #most;
  #first;
  #onMove;
  #width;
  #begun = null;

  /** The part to the right of the line has a width from `least` to `most()` pixels, at first `first`; `onMove(width)` is called with each one, and `key`
   * is what it is kept under. */
  constructor({ label, key, least, most, first, onMove }) {
    this.#key = key;
    this.#least = least;
    this.#most = most;
    this.#first = first;
    this.#onMove = onMove;
    const kept = Number(localStorage.getItem(key));
    this.#width = Number.isFinite(kept) && kept > 0 ? kept : first;
    this.element = h("div", {
      className: "divider",
      tabIndex: 0,
      attributes: { role: "separator", "aria-orientation": "vertical" },
      aria: { label, valuemin: String(least) },
      on: {
        pointerdown: (event) => this.#begin(event),
        pointermove: (event) => this.#follow(event),
        pointerup: () => this.#end(),
        pointercancel: () => this.#end(),
        dblclick: () => this.#set(this.#first, true),
        keydown: (event) => this.#type(event),
      },
    });
    this.fit();
  }

  /** The room has changed: the same width as before, as far as it is there. */
  fit() {
    this.#set(this.#width, false);
  }

  #set(width, keep) {
    const most = Math.max(this.#least, Math.floor(this.#most()));
    const shown = Math.min(most, Math.max(this.#least, Math.round(width)));
    this.element.setAttribute("aria-valuemax", String(most));
    this.element.setAttribute("aria-valuenow", String(shown));
    if (keep) {
      this.#width = shown;
      localStorage.setItem(this.#key, String(shown));
    }
    this.#onMove(shown);
  }

  #begin(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.element.focus({ focusVisible: false });
    // Captured, so that the desktops' frames below the pointer do not take the movement for themselves.
    this.element.setPointerCapture(event.pointerId);
    this.#begun = { x: event.clientX, width: Number(this.element.getAttribute("aria-valuenow")) };
    document.body.classList.add("dividing");
  }

  #follow(event) {
    if (this.#begun) this.#set(this.#begun.width + this.#begun.x - event.clientX, true);
  }

  #end() {
    this.#begun = null;
    document.body.classList.remove("dividing");
  }

  #type(event) {
    const now = Number(this.element.getAttribute("aria-valuenow"));
    const moves = { ArrowLeft: now + STEP, ArrowRight: now - STEP, PageUp: now + PAGE, PageDown: now - PAGE, Home: this.#least, End: Infinity };
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    this.#set(Math.min(moves[event.key], this.#most()), true);
  }
}
