// One workspace in the grid: a header with what can be done, and its desktop, console or the reason why there is none.

import { discard, launch, logs } from "./api.js";
import { Desktop } from "./desktop.js";
import { openDiscard } from "./discard.js";
import { button, h, icon, prose, replaceWhenChanged, setText } from "./dom.js";
import { openFork } from "./fork.js";
import { STATE_LABELS, age, size } from "./format.js";
import { Phases } from "./phases.js";
import { store } from "./store.js";

const LOG_TAIL = 40;
const LOG_EVERY = 4000;
const LIVE = ["ready", "forking"];

export class Tile {
  #desktop = null;
  #phases = null;
  #body = h("div", { className: "tile-body" });
  #overlay = h("div", { className: "tile-overlay", hidden: true });
  #console = null;
  #logTimer = null;
  #view = "";

  /** `solo`: the only thing on its page, so it offers no way to open it alone. */
  constructor(workspace, { solo = false } = {}) {
    this.id = workspace.id;
    this.workspace = workspace;
    this.dot = h("span", { className: "dot", aria: { hidden: "true" } });
    this.name = solo ? h("h1", { className: "tile-name" }) : h("h2", { className: "tile-name" });
    this.meta = h("span", { className: "tile-meta" });
    this.chip = h("span", { className: "chip", attributes: { role: "status" } });
    this.keyboard = h("span", { className: "chip keyboard", title: "Keys go to this desktop", hidden: true }, icon("keyboard"), h("span", { textContent: "Keyboard" }));
    this.ports = h("span", { className: "ports" });
    this.fork = button("Fork", { iconName: "fork", on: () => openFork(this.workspace) });
    this.reload = button("Reconnect picture", { iconName: "reload", iconOnly: true, kind: "quiet", on: () => this.#desktop?.open() });
    this.trash = button("Discard", { iconName: "trash", iconOnly: true, kind: "quiet danger-hover", on: () => openDiscard(this.workspace) });
    const open = solo ? null : h("a", { className: "button quiet icon-only", href: `/w/${workspace.id}`, title: "Open alone", aria: { label: "Open alone" } }, icon("open"));
    const actions = h("div", { className: "tile-actions" }, this.fork, this.reload, open, this.trash);
    const first = h("div", { className: "tile-line" }, this.name, this.chip, this.keyboard);
    const second = h("div", { className: "tile-line tile-detail" }, this.meta, this.ports);
    this.header = h("header", { className: "tile-header" }, this.dot, h("div", { className: "tile-title" }, first, second), actions);
    this.#body.append(this.#overlay);
    this.element = h("article", { className: "tile", tabIndex: -1, data: { workspace: this.id } }, this.header, this.#body);
    this.header.addEventListener("click", (event) => event.target.closest("a, button") || this.focusDesktop());
    this.update(workspace);
  }

  get frame() {
    return this.#desktop?.frame ?? null;
  }

  focusDesktop() {
    this.chosen = true;
    (this.frame ?? this.element).focus({ focusVisible: false });
  }

  showKeyboard(here) {
    this.element.classList.toggle("has-keyboard", here);
    this.keyboard.hidden = !here;
  }

  update(workspace) {
    this.workspace = workspace;
    const { state } = workspace;
    this.element.dataset.state = state;
    this.element.setAttribute("aria-label", `${workspace.name}, ${STATE_LABELS[state]}`);
    setText(this.name, workspace.name);
    this.name.title = workspace.name;
    this.#updateMeta();
    setText(this.chip, STATE_LABELS[state]);
    const down = store.engine === "down";
    this.fork.disabled = state !== "ready" || down;
    this.trash.disabled = state === "removing" || down;
    this.reload.hidden = !workspace.desktop || !LIVE.includes(state);
    this.#updatePorts();
    this.#updateBody();
  }

  /** Take the stream away (the tile is not on the visible page). */
  dispose() {
    this.#closeViews();
    this.element.remove();
  }

  #updateMeta() {
    const { id, parent } = this.workspace;
    replaceWhenChanged(this.meta, `${id} ${parent} ${store.workspaces.has(parent)}`, () => {
      const own = h("span", { className: "mono", textContent: id });
      if (!parent) return [own];
      const from = store.workspaces.has(parent)
        ? h("a", { className: "mono", href: `/w/${encodeURIComponent(parent)}`, textContent: parent })
        : h("span", { className: "mono struck", textContent: parent, title: "discarded" });
      return [own, h("span", { textContent: " from " }), from];
    });
  }

  #updatePorts() {
    const entries = Object.entries(this.workspace.ports);
    replaceWhenChanged(this.ports, JSON.stringify(entries), () =>
      entries.map(([inside, outside]) =>
        h(
          "a",
          {
            className: "port",
            href: `http://localhost:${outside}`,
            target: "_blank",
            rel: "noopener noreferrer",
            title: `Port ${inside} of ${this.workspace.name}, on this host's port ${outside}`,
            aria: { label: `Port ${inside} of ${this.workspace.name}, opens localhost:${outside} in a new tab` },
          },
          h("span", { textContent: `:${inside}` }),
          h("span", { className: "port-host", textContent: String(outside) }),
          icon("external"),
        ),
      ),
    );
  }

  #updateBody() {
    const { state, desktop } = this.workspace;
    const view = LIVE.includes(state) ? (desktop ? "desktop" : "console") : state === "created" ? "starting" : state;
    if (view !== this.#view) {
      this.#view = view;
      this.#closeViews();
      if (view === "desktop") this.#openDesktop();
      else if (view === "console") this.#openConsole();
      else if (view === "starting") this.#openStarting();
      else if (view === "removing") this.#message("Discarding", "Its processes, files and ports are being removed.", []);
      else this.#openEnded();
    }
    if (view === "starting") this.#phases.update(store.operations.get(this.id)?.phases ?? []);
    if (view === "console") this.#updateFacts();
  }

  #closeViews() {
    this.#desktop?.close();
    this.#desktop = null;
    this.#phases = null;
    this.#console?.remove();
    this.#console = null;
    clearInterval(this.#logTimer);
    this.#overlay.hidden = true;
  }

  #message(title, text, actions, kind = "") {
    this.#overlay.className = `tile-overlay ${kind}`;
    this.#overlay.replaceChildren(h("strong", { textContent: title }), text ? h("p", {}, ...prose(text)) : "", h("div", { className: "overlay-actions" }, ...actions));
    this.#overlay.hidden = false;
  }

  #openDesktop() {
    this.#desktop = new Desktop(this.id, this.workspace.name, (state, message) => {
      if (state === "shown") this.#overlay.hidden = true;
      else if (state === "opening") this.#message("Opening the desktop", "", [], "busy");
      else this.#message("The desktop could not be opened", message, [button("Retry", { iconName: "reload", on: () => this.#desktop?.open() })], "error");
    });
    this.#body.prepend(this.#desktop.frame);
    // The frame joins the page with the tile, which may happen only after this call.
    queueMicrotask(() => this.#desktop?.open());
  }

  #openStarting() {
    this.#phases = new Phases();
    this.#message("Starting", "", [], "progress");
    this.#overlay.append(this.#phases.total, this.#phases.element);
  }

  #openEnded() {
    const failed = this.workspace.state === "failed";
    const retry = button("Retry", { iconName: "reload", on: () => this.#retry(retry) });
    const remove = button("Discard", { iconName: "trash", kind: "quiet", on: () => openDiscard(this.workspace) });
    const title = failed ? "It did not start" : "Stopped";
    const again = this.workspace.kind === "source" ? [retry, remove] : [remove];
    this.#message(title, this.workspace.error ?? "Its first process has ended.", again, "error");
    this.#addLogs();
  }

  async #addLogs() {
    let text = "";
    try {
      text = (await logs(this.id, 20)).trimEnd();
    } catch {
      return; // the message above says already that it failed; a missing log adds nothing
    }
    if (text && !this.#overlay.hidden) this.#overlay.append(h("pre", { className: "log", tabIndex: 0, textContent: text, aria: { label: "Last lines of its log" } }));
  }

  /** A failed launch again: the same image, name, ports and memory. */
  async #retry(clicked) {
    clicked.disabled = true;
    const { image, name, ports, memory_limit: memory } = this.workspace;
    try {
      await discard(this.id);
      await launch({ image, name, ports: Object.keys(ports).map(Number), ...(memory ? { memory } : {}) });
    } catch (failure) {
      clicked.disabled = false;
      this.#message("It could not be started again", failure.message, [clicked], "error");
    }
  }

  #openConsole() {
    this.facts = h("dl", { className: "facts" });
    this.log = h("pre", { className: "log", tabIndex: 0, aria: { label: `Log of ${this.workspace.name}` } });
    const command = h("code", { textContent: `tclone shell ${this.id}` });
    this.#console = h("div", { className: "console" }, this.facts, h("p", { className: "console-hint" }, "No desktop in this image. A shell: ", command), this.log);
    this.#body.prepend(this.#console);
    const refresh = async () => {
      if (document.visibilityState !== "visible" || !this.#console) return;
      try {
        const text = (await logs(this.id, LOG_TAIL)).trimEnd();
        const atEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 4;
        setText(this.log, text || "Nothing logged yet.");
        if (atEnd) this.log.scrollTop = this.log.scrollHeight;
      } catch (failure) {
        setText(this.log, failure.message);
      }
    };
    refresh();
    this.#logTimer = setInterval(refresh, LOG_EVERY);
  }

  #updateFacts() {
    const { image, created, memory_limit: memory, network } = this.workspace;
    const rows = [["Image", image], ["Age", age(created)], ["Memory limit", memory ? size(memory) : "none"], ["Network", network]];
    replaceWhenChanged(this.facts, JSON.stringify(rows), () => rows.map(([term, value]) => h("div", {}, h("dt", { textContent: term }), h("dd", { textContent: value }))));
  }
}
