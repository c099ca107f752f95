// A workspace's desktop in a frame. It lives on a host of its own and is opened by a one-time code, posted, never in an address.

import { ticket } from "./api.js";
import { h } from "./dom.js";

// The size of a desktop's screen. The frame always has it, and is scaled to its place as a whole: the viewer does not follow when a
// frame changes its size, and enlarges or shrinks without smoothing, which makes small text in a small tile unreadable.
const SCREEN = { width: 1280, height: 800 };

let counter = 0;

export class Desktop {
  #name;
  #tries = 0;
  #place = new ResizeObserver(() => this.#fit());

  /** `onState("opening" | "shown" | "failed", message)` */
  constructor(id, title, onState) {
    this.id = id;
    counter += 1;
    this.#name = `desktop-${id}-${counter}`;
    this.onState = onState;
    this.frame = h("iframe", {
      name: this.#name,
      title: `Desktop of ${title}`,
      className: "desktop",
      attributes: {
        sandbox: "allow-scripts allow-same-origin allow-forms allow-downloads allow-pointer-lock",
        // The frame has no `src` (a form fills it), so a bare name would delegate to the portal's own origin; the form's target is checked.
        allow: "clipboard-read *; clipboard-write *; autoplay *; fullscreen *; screen-wake-lock *",
      },
    });
  }

  /** Open, or open anew. The frame must be in the page already. */
  async open() {
    const attempt = (this.#tries += 1);
    this.#place.observe(this.frame.parentElement);
    this.onState("opening", "");
    let answer;
    try {
      answer = await ticket(this.id);
    } catch (failure) {
      if (attempt === this.#tries) this.onState("failed", failure.message);
      return;
    }
    if (attempt !== this.#tries || !this.frame.isConnected) return;
    this.frame.addEventListener("load", () => attempt === this.#tries && this.onState("shown", ""), { once: true });
    const form = h("form", { method: "post", action: answer.action, target: this.#name, hidden: true }, h("input", { type: "hidden", name: "code", value: answer.code }));
    document.body.append(form);
    form.submit();
    form.remove();
  }

  close() {
    this.#tries += 1;
    this.#place.disconnect();
    this.frame.remove();
  }

  /** As large as the place allows, in its middle. */
  #fit() {
    const { clientWidth: width, clientHeight: height } = this.frame.parentElement;
    const scale = Math.min(width / SCREEN.width, height / SCREEN.height);
    const left = (width - SCREEN.width * scale) / 2;
    const top = (height - SCREEN.height * scale) / 2;
    this.frame.style.transform = `translate(${left}px, ${top}px) scale(${scale})`;
  }
}
