// A shell in the workspace. It lives as long as the page does and no longer; another one is a click away.

import { sessionKey, toLogin } from "./api.js";
import { button, h } from "./dom.js";
import { terminalAddress } from "./inside.js";
import { Note, panelHead } from "./panel.js";
import "./stylesheet.js";
import { terminal as words } from "./strings_panels.js";

const VENDOR = new URL("../vendor/", import.meta.url);
const THEME = { background: "#0b0d11", foreground: "#e8ebf1", cursor: "#8fabff", selectionBackground: "#33467a" };

export class TerminalPanel {
  #terminal = null;
  #fit = null;
  #socket = null;
  #runs = false;
  #place = h("div", { className: "terminal" });
  #note = new Note();
  #again = button(words.again, { iconName: "reload", on: () => this.#anew() });

  constructor({ id, leave, mayFocus }) {
    this.id = id;
    this.leave = leave;
    this.mayFocus = mayFocus;
    this.#again.hidden = true;
    const hint = h("span", { className: "panel-hint", textContent: words.hint });
    this.element = h("section", { className: "terminal-panel" }, panelHead(words.title, hint, this.#again), this.#note.element, this.#place);
    new ResizeObserver(() => this.#resized()).observe(this.#place);
  }

  update(_, runs) {
    this.#runs = runs;
  }

  async shown() {
    if (this.#terminal) {
      this.#resized();
      this.#focus();
      return;
    }
    if (!(await this.#load())) return;
    await this.#open();
  }

  /** Only now: nobody else needs a terminal's 340 kB. */
  async #load() {
    try {
      // Its style sheet, too: the size of a character is measured as the terminal opens.
      const [{ Terminal }, { FitAddon }] = await Promise.all([import(new URL("xterm.js", VENDOR)), import(new URL("addon-fit.js", VENDOR)), styled(new URL("xterm.css", VENDOR))]);
      this.#terminal ??= new Terminal({ fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), fontSize: 13, theme: THEME, scrollback: 5000, cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches });
      this.#fit = new FitAddon();
      this.#terminal.loadAddon(this.#fit);
      this.#terminal.open(this.#place);
      this.#terminal.textarea.setAttribute("aria-label", words.input);
      this.#terminal.attachCustomKeyEventHandler((event) => this.#key(event));
      this.#terminal.onData((text) => this.#send(new TextEncoder().encode(text)));
      this.#terminal.onBinary((text) => this.#send(Uint8Array.from(text, (character) => character.charCodeAt(0))));
      this.#terminal.onResize(({ rows, cols }) => this.#send(JSON.stringify({ resize: [rows, cols] })));
      return true;
    } catch {
      this.#terminal = null;
      this.#note.say(words.missing, "error");
      return false;
    }
  }

  /** Whether the terminal gets a key. Ctrl+F6 leaves it: Tab belongs to the shell. */
  #key(event) {
    if (event.key !== "F6" || !event.ctrlKey) return true;
    if (event.type === "keydown") this.leave();
    return false;
  }

  /** The button goes away with the click: the focus goes to the terminal. */
  #anew() {
    this.#terminal.focus();
    this.#open();
  }

  #open() {
    if (this.#socket) return;
    if (!this.#runs) {
      this.#note.say(words.notRunning, "error");
      this.#again.hidden = false;
      return;
    }
    this.#again.hidden = true;
    this.#note.say(words.opening);
    this.#fit.fit();
    const { rows, cols } = this.#terminal;
    const socket = new WebSocket(terminalAddress(this.id));
    socket.binaryType = "arraybuffer";
    let last = null;
    socket.addEventListener("open", () => socket.send(JSON.stringify({ type: "hello", key: sessionKey(), rows, cols })));
    socket.addEventListener("message", ({ data }) => {
      if (typeof data !== "string") {
        this.#terminal.write(new Uint8Array(data));
        return;
      }
      last = JSON.parse(data);
      if (last.type === "ready") {
        this.#note.say("");
        this.#focus();
      }
    });
    socket.addEventListener("close", () => {
      this.#socket = null;
      if (last?.type === "ended") {
        toLogin();
        return;
      }
      this.#note.say(last?.type === "exit" ? words.exit(last.code) : (last?.error?.message ?? words.lost), last?.type === "exit" ? "" : "error");
      this.#again.hidden = false;
      this.#terminal.write("\r\n");
    });
    this.#socket = socket;
  }

  #focus() {
    if (this.mayFocus() && !this.element.hidden) this.#terminal.focus();
  }

  #send(data) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(data);
  }

  #resized() {
    if (this.#terminal && this.#place.clientWidth && this.#place.clientHeight) this.#fit.fit();
  }
}

/** Add a style sheet to the page; fulfilled once it is in force. */
function styled(address) {
  return new Promise((resolve, reject) => {
    document.head.append(h("link", { rel: "stylesheet", href: address.href, on: { load: resolve, error: reject } }));
  });
}
