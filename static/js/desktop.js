// A workspace's desktop: a still picture, and over it, while it is the one in use, its stream in a frame. The frame lives on a host of its
// own and is opened by a one-time code, posted, never in an address.

import { ticket } from "./api.js";
import { Channel } from "./channel.js";
import { h } from "./dom.js";
import { unwatch, watch } from "./pictures.js";
import { tile as words } from "./strings.js";

// The size of a desktop's screen. The frame always has it, and is scaled to its place as a whole: the viewer does not follow when a
// frame changes its size, and enlarges or shrinks without smoothing, which makes small text in a small tile unreadable.
export const SCREEN = { width: 1280, height: 800 };
// How long a stream that is no longer wanted stays in place for the still picture that takes over.
const HANDOVER_MS = 2500;

let counter = 0;

export class Desktop {
  #live = null;
  #leaving = null;
  #title;
  #place = new ResizeObserver(() => this.#fit());
  #watched = false;
  #wanted = null;
  #audible = true;

  /** `onChange(state, message)`: "still" | "opening" | "shown" | "failed" of what is in its place, "picture" when a still one was drawn;
   * `onTold(type, message)` for what the viewer says. */
  constructor(id, title, { onChange, onTold }) {
    this.id = id;
    this.#title = title;
    this.onChange = onChange;
    this.onTold = onTold;
    this.canvas = h("canvas", { className: "still", width: SCREEN.width, height: SCREEN.height, attributes: { role: "img", "aria-label": words.pictureOf(title) } });
    this.element = h("div", { className: "desktop-place" }, this.canvas);
    this.#place.observe(this.element);
  }

  /** The frame of the stream, or null. */
  get frame() {
    return this.#live?.frame ?? null;
  }

  /** Called when a still picture was drawn (pictures.js). */
  onPicture() {
    this.#drop();
    this.onChange("picture", "");
  }

  /** Stream, or show a still picture that is renewed now and then. */
  setLive(live) {
    if (live === this.#wanted) return;
    this.#wanted = live;
    if (live) {
      this.#drop();
      this.#live = new Stream(this);
      this.element.append(this.#live.frame);
      this.#fit();
      // The frame joins the page with the tile, which may happen only after this call.
      queueMicrotask(() => this.#live?.open());
    } else if (this.#live !== null) {
      this.#leaving = this.#live;
      this.#live = null;
      this.#leaving.leave();
      const stream = this.#leaving;
      setTimeout(() => this.#leaving === stream && this.#drop(), HANDOVER_MS);
    }
    // Also while a stream opens: until its first picture the still one is what there is to see.
    this.#watch(true);
    if (!live) this.onChange("still", "");
  }

  /** Called by a stream whose picture is there: the still one is not needed any more. */
  streams() {
    this.#watch(false);
  }

  reopen() {
    this.#live?.open();
  }

  /** Whether it may be heard: of several that stream one is. */
  setAudible(audible) {
    if (audible === this.#audible) return;
    this.#audible = audible;
    this.#live?.tell("sound", { on: audible });
  }

  get audible() {
    return this.#audible;
  }

  tell(order, rest) {
    this.#live?.tell(order, rest);
  }

  close() {
    this.#watch(false);
    this.#place.disconnect();
    this.#drop();
    this.#live?.close();
    this.#live = null;
    this.element.remove();
  }

  get title() {
    return this.#title;
  }

  #watch(on) {
    if (on === this.#watched) return;
    this.#watched = on;
    if (on) watch(this);
    else unwatch(this);
  }

  #drop() {
    this.#leaving?.close();
    this.#leaving = null;
  }

  /** As large as the place allows, in its middle. */
  #fit() {
    const { clientWidth: width, clientHeight: height } = this.element;
    const scale = Math.min(width / SCREEN.width, height / SCREEN.height);
    const left = (width - SCREEN.width * scale) / 2;
    const top = (height - SCREEN.height * scale) / 2;
    for (const stream of [this.#live, this.#leaving]) if (stream) stream.frame.style.transform = `translate(${left}px, ${top}px) scale(${scale})`;
    this.scale = scale;
  }
}

class Stream {
  #desktop;
  #name;
  #tries = 0;
  #channel = null;

  constructor(desktop) {
    this.#desktop = desktop;
    counter += 1;
    this.#name = `desktop-${desktop.id}-${counter}`;
    this.frame = h("iframe", {
      name: this.#name,
      title: words.desktopOf(desktop.title),
      className: "desktop arriving",
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
    const current = () => attempt === this.#tries && this.frame.isConnected;
    this.frame.classList.add("arriving");
    this.#desktop.onChange("opening", "");
    let answer;
    try {
      answer = await ticket(this.#desktop.id);
    } catch (failure) {
      if (current()) this.#desktop.onChange("failed", failure.message);
      return;
    }
    if (!current()) return;
    this.#channel?.close();
    this.#channel = new Channel(this.frame, new URL(answer.action).origin, {
      hear: (type, message) => current() && this.#hear(type, message),
      silent: () => current() && this.#shown(),
    });
    const form = h("form", { method: "post", action: answer.action, target: this.#name, hidden: true }, h("input", { type: "hidden", name: "code", value: answer.code }));
    document.body.append(form);
    form.submit();
    form.remove();
  }

  tell(order, rest) {
    this.#channel?.tell(order, rest);
  }

  /** It stays to be seen until a still picture is there, but takes no more input. */
  leave() {
    this.tell("release");
    this.#tries += 1;
    this.frame.inert = true;
    this.frame.blur();
  }

  close() {
    this.#tries += 1;
    this.#channel?.close();
    this.frame.remove();
  }

  #hear(type, message) {
    if (type === "picture") this.#shown();
    else if (type === "hello") this.tell("sound", { on: this.#desktop.audible });
    this.#desktop.onTold(type, message);
  }

  #shown() {
    this.frame.classList.remove("arriving");
    this.#desktop.streams();
    this.#desktop.onChange("shown", "");
  }
}
