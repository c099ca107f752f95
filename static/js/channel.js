// What the portal's page and the script in a viewer's page say to each other (static/viewer/viewer.js).
//
// The viewer's page belongs to its workspace and may be hostile. Nothing that it says can do more than change what this page shows of that
// very workspace: that its picture is there, that it is late, that the shortcut bar was asked for while its frame had the keyboard. Input
// goes one way, from here to there; a desktop can never reach another one through this page.

/** A viewer that tells nothing of its picture (another image's) is shown so long after its page has loaded. */
const SILENT_VIEWER_MS = 5000;

const TYPES = new Set(["hello", "picture", "waiting", "quality", "leader"]);
const listeners = new Map();

window.addEventListener("message", (event) => {
  const listener = listeners.get(event.source);
  if (listener === undefined || event.origin !== listener.origin) return;
  const type = event.data?.tclone;
  if (TYPES.has(type)) listener.hear(type, event.data);
});

/** One frame, heard and spoken to only while it shows a page of `origin`. */
export class Channel {
  #window;
  #origin;
  // Whether its script has said anything: then it also tells when there is a picture.
  #heard = false;
  #silence = null;

  /** `hear(type, message)` for what it says; `silent()` when it has said nothing for so long that it may be shown. */
  constructor(frame, origin, { hear, silent }) {
    this.#window = frame.contentWindow;
    this.#origin = origin;
    const note = (type, message) => {
      this.#heard = true;
      clearTimeout(this.#silence);
      hear(type, message);
    };
    listeners.set(this.#window, { origin, hear: note });
    const loaded = () => {
      if (this.#window !== null && !this.#heard) this.#silence = setTimeout(silent, SILENT_VIEWER_MS);
    };
    frame.addEventListener("load", loaded, { once: true });
  }

  tell(order, rest = {}) {
    // Before its script has said a word there is nobody to listen, and the frame may still show another origin's page.
    if (this.#heard) this.#window?.postMessage({ tclone: order, ...rest }, this.#origin);
  }

  close() {
    clearTimeout(this.#silence);
    listeners.delete(this.#window);
    this.#window = null;
  }
}
