// Text that comes without keys of its own: from input methods, dead keys, keyboards on a screen, and the clipboard. A field that nobody sees has
// the focus while input is mirrored; what arrives in it is passed on and taken out again.

import { h } from "./dom.js";
import { compare as words } from "./strings.js";
import { toast } from "./toast.js";

// The viewer's script takes no more at once (static/viewer/viewer.js).
const LONGEST = 16384;
// A field that is empty gives no sign of a Backspace: there is always something before the cursor.
const BEFORE = " ";
// Keyboards on a screen tell these only as a change of the field.
const KEYS = { insertLineBreak: 0xff0d, insertParagraph: 0xff0d, deleteContentBackward: 0xff08, deleteWordBackward: 0xff08, deleteContentForward: 0xffff };
// The text of a composition comes with its end.
const COMPOSED = ["insertCompositionText", "insertFromComposition", "deleteCompositionText"];
// What browsers call a key that an input method, or a keyboard on a screen, deals with.
const BY_INPUT_METHOD = 229;

/** Whether a key that went down is one whose text will follow. */
export const isTyped = (event) => event.isComposing || event.keyCode === BY_INPUT_METHOD || event.key === "Dead";

/** Whether a key that went down pastes, in programs of desktops and in browsers alike. */
export function pastes(event) {
  if (event.altKey) return false;
  return event.code === "KeyV" ? event.ctrlKey || event.metaKey : event.code === "Insert" && event.shiftKey && !event.ctrlKey;
}

export class MirrorText {
  #tell;

  /** `tell`: `{type(text), press(keysym), paste(text or null)}` */
  constructor(tell) {
    this.#tell = tell;
    this.element = h("textarea", { className: "mirror-text", rows: 1, spellcheck: false, autocomplete: "off", attributes: { autocapitalize: "off", autocorrect: "off" }, aria: { label: words.surface } });
    this.element.addEventListener("input", (event) => this.#changed(event));
    this.element.addEventListener("compositionend", (event) => this.#typed(event.data));
    this.element.addEventListener("paste", (event) => this.#pasted(event));
    this.#empty();
  }

  /** Take the keyboard; at this place of the window input methods show their choices. */
  focus(x, y) {
    const place = this.element.parentElement.getBoundingClientRect();
    if (x !== undefined) Object.assign(this.element.style, { left: `${Math.max(0, x - place.left)}px`, top: `${Math.max(0, y - place.top)}px` });
    this.element.focus({ focusVisible: false, preventScroll: true });
  }

  #empty() {
    this.element.value = BEFORE;
    this.element.setSelectionRange(BEFORE.length, BEFORE.length);
  }

  #changed({ inputType, data, isComposing }) {
    if (isComposing || COMPOSED.includes(inputType)) return;
    if (inputType in KEYS) {
      this.#empty();
      this.#tell.press(KEYS[inputType]);
    } else this.#typed(data ?? "");
  }

  #typed(text) {
    this.#empty();
    if (text.length > LONGEST) tooLong();
    else if (text) this.#tell.type(text);
  }

  #pasted(event) {
    event.preventDefault();
    const text = event.clipboardData.getData("text/plain");
    // Desktops whose clipboards differ would paste two different texts.
    if (text.length > LONGEST) {
      tooLong();
      this.#tell.paste(null);
    } else this.#tell.paste(text);
  }
}

function tooLong() {
  toast(words.tooLong, words.tooLongText(LONGEST), { kind: "error" });
}
