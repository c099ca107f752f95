// One workspace in the grid: a header with what can be done, and its desktop, console or the reason why there is none.

import { openApi } from "./api_dialog.js";
import { discard, launch, logs, resume } from "./api.js";
import { Console } from "./console.js";
import { Control } from "./control.js";
import { Desktop } from "./desktop.js";
import { openDiscard } from "./discard.js";
import { button, h, icon, prose, replaceWhenChanged, setName, setText } from "./dom.js";
import { openFork } from "./fork.js";
import { Phases } from "./phases.js";
import { PortLine } from "./portline.js";
import { openShareDialog } from "./share_dialog.js";
import { store } from "./store.js";
import { byApi, common, share, states, tile as words } from "./strings.js";

const STREAMING = ["ready", "forking"];
// There is nothing to watch any more, nor will there be.
const OVER = ["failed", "stopped", "removing"];

export class Tile {
  #desktop = null;
  #phases = null;
  #console = null;
  #body = h("div", { className: "tile-body" });
  #overlay = h("div", { className: "tile-overlay", hidden: true });
  #ports = new PortLine();
  #live = false;
  #audible = true;
  #view = "";

  /** `solo`: the only thing on its page, so it offers no way to open it alone. `choose(id)` is called when somebody wants to work in it. */
  constructor(workspace, { solo = false, choose = () => {}, hear = () => {} } = {}) {
    this.id = workspace.id;
    this.workspace = workspace;
    this.choose = choose;
    this.hear = hear;
    this.dot = h("span", { className: "dot", aria: { hidden: "true" } });
    this.name = solo ? h("h1", { className: "tile-name" }) : h("h2", { className: "tile-name" });
    this.label = h("span", { className: "tile-label", hidden: true });
    this.meta = h("span", { className: "tile-meta" });
    this.chip = h("span", { className: "chip", attributes: { role: "status" } });
    this.live = h("span", { className: "chip live", title: words.liveTitle, textContent: words.live, hidden: true });
    this.poor = h("span", { className: "chip warn", title: words.poorTitle, textContent: words.poor, hidden: true });
    this.watched = h("span", { className: "chip warn", title: words.watchedTitle, hidden: true });
    this.keyboard = h("span", { className: "chip keyboard", title: words.keyboardTitle, hidden: true }, icon("keyboard"), h("span", { textContent: words.keyboard }));
    this.fork = button(words.fork, { iconName: "fork", on: () => this.openFork() });
    this.reload = button(words.reconnect, { iconName: "reload", iconOnly: true, caption: words.captions.reconnect, kind: "quiet", on: () => this.#desktop?.reopen() });
    this.trash = button(words.discard, { iconName: "trash", iconOnly: true, caption: words.discard, kind: "quiet danger-hover", on: () => openDiscard(this.workspace) });
    this.share = solo ? button(share.open, { iconName: "eye", on: () => openShareDialog(this.workspace) }) : null;
    const api = solo ? button(byApi.open, { iconName: "code", iconOnly: true, caption: words.captions.api, kind: "quiet", on: () => openApi(this.workspace) }) : null;
    this.control = new Control(workspace, () => this.release());
    const open = solo ? null : h("a", { className: "button quiet icon-only", href: `/w/${workspace.id}`, title: words.alone, aria: { label: words.alone } }, icon("open"), h("span", { className: "caption", textContent: words.captions.alone }));
    this.actions = h("div", { className: "tile-actions" }, this.control.toggle, this.fork, this.reload, this.control.clock, this.share, api, open, this.trash);
    const first = h("div", { className: "tile-line" }, this.name, this.chip, this.live, this.poor, this.watched, this.keyboard);
    const second = h("div", { className: "tile-line tile-detail" }, this.meta, this.control.holder, this.control.left, this.control.keep, this.label, this.#ports.element);
    this.header = h("header", { className: "tile-header" }, this.dot, h("div", { className: "tile-title" }, first, second), this.actions);
    // Over a still picture, and over all of a small tile in the strip: a click anywhere, or Enter, makes it the one that is worked in.
    this.wake = h("button", { type: "button", className: "wake", on: { click: () => this.choose(this.id) } });
    this.#body.append(this.#overlay, this.wake);
    this.element = h("article", { className: "tile", tabIndex: -1, data: { workspace: this.id } }, this.header, this.#body);
    // Style sheets that make a tile as high as its picture count with it.
    new ResizeObserver(() => this.element.style.setProperty("--head", `${this.header.offsetHeight}px`)).observe(this.header);
    this.header.addEventListener("click", (event) => event.target.closest("a, button") || this.choose(this.id));
    this.update(workspace);
  }

  get frame() {
    return this.#desktop?.frame ?? null;
  }

  /** Whether it has a desktop that could stream. */
  get canStream() {
    return this.#view === "desktop";
  }

  setLive(live) {
    this.#live = live;
    this.element.classList.toggle("is-live", live);
    this.#applyLive();
  }

  /** Whether its desktop may be heard. */
  setAudible(audible) {
    this.#audible = audible;
    this.#desktop?.setAudible(audible);
  }

  focusDesktop() {
    this.chosen = true;
    (this.frame ?? this.element).focus({ focusVisible: false });
  }

  openFork() {
    this.release();
    openFork(this.workspace, () => this.focusDesktop());
  }

  /** Let go of every key and button that is held in the desktop. */
  release() {
    this.#desktop?.tell("release");
  }

  tell(order, rest) {
    this.#desktop?.tell(order, rest);
  }

  showKeyboard(here) {
    this.element.classList.toggle("has-keyboard", here);
    this.keyboard.hidden = !here;
  }

  update(workspace) {
    this.workspace = workspace;
    const { state, name, label = "" } = workspace;
    this.element.dataset.state = state;
    this.element.setAttribute("aria-label", `${name}, ${states[state]}`);
    setName(this.name, name);
    this.name.title = name;
    setText(this.label, label);
    this.label.title = label;
    this.label.hidden = !label;
    this.wake.setAttribute("aria-label", words.wake(name));
    this.#updateMeta();
    setText(this.chip, states[state]);
    const watching = store.watched.get(this.id) ?? 0;
    this.watched.hidden = !watching;
    if (watching) setText(this.watched, words.watched(watching));
    const down = store.engine === "down";
    this.fork.disabled = state !== "ready" || down;
    if (this.share) this.share.hidden = !workspace.desktop || OVER.includes(state);
    this.trash.disabled = state === "removing" || down;
    this.#ports.update(workspace);
    this.control.update(workspace);
    this.#updateBody();
    this.reload.hidden = !this.canStream || !this.#live;
  }

  /** Take the stream away (the tile is not on the visible page). */
  dispose() {
    this.#closeViews();
    this.#ports.close();
    this.control.close();
    this.element.remove();
  }

  #updateMeta() {
    const { id, parent } = this.workspace;
    replaceWhenChanged(this.meta, `${id} ${parent} ${store.workspaces.has(parent)}`, () => {
      const own = h("span", { className: "mono", textContent: id });
      if (!parent) return [own];
      const from = store.workspaces.has(parent)
        ? h("a", { className: "mono", href: `/w/${encodeURIComponent(parent)}`, textContent: parent })
        : h("span", { className: "mono struck", textContent: parent, title: words.discarded });
      return [own, h("span", { className: "tile-from" }, h("span", { textContent: words.from }), from)];
    });
  }

  #updateBody() {
    const { state, desktop } = this.workspace;
    const view = STREAMING.includes(state) ? (desktop ? "desktop" : "console") : state === "created" ? "starting" : state;
    if (view !== this.#view) {
      this.#view = view;
      this.element.dataset.view = view;
      this.#closeViews();
      if (view === "desktop") this.#openDesktop();
      else if (view === "console") this.#openConsole();
      else if (view === "starting") this.#openStarting();
      else if (view === "removing") this.#message(words.removing, words.removingText, []);
      else if (view === "paused") this.#openPaused();
      else this.#openEnded();
    }
    if (view === "starting") this.#phases.update(store.operations.get(this.id)?.phases ?? []);
    this.#console?.update(this.workspace);
  }

  #closeViews() {
    this.#desktop?.close();
    this.#desktop = null;
    this.#phases = null;
    this.#console?.close();
    this.#console = null;
    this.#overlay.hidden = true;
    this.poor.hidden = true;
    this.live.hidden = true;
    delete this.element.dataset.picture;
  }

  #message(title, text, actions, kind = "") {
    this.#overlay.className = `tile-overlay ${kind}`;
    this.#overlay.replaceChildren(h("strong", { textContent: title }), text ? h("p", {}, ...prose(text)) : "", h("div", { className: "overlay-actions" }, ...actions));
    this.#overlay.hidden = false;
  }

  #openDesktop() {
    this.#desktop = new Desktop(this.id, this.workspace.name, {
      onChange: (state, message) => this.#desktopChanged(state, message),
      onTold: (type, message) => {
        if (type === "quality") this.poor.hidden = message.poor !== true;
        this.hear(this, type);
      },
    });
    this.#body.prepend(this.#desktop.element);
    this.#desktop.setAudible(this.#audible);
    this.#applyLive();
  }

  #applyLive() {
    if (this.#desktop === null) return;
    this.live.hidden = !this.#live;
    this.reload.hidden = !this.#live;
    if (!this.#live) this.poor.hidden = true;
    this.#desktop.setLive(this.#live);
  }

  #desktopChanged(state, message) {
    if (state === "picture") this.element.dataset.picture = "still";
    if (state === "shown") this.element.dataset.picture = "stream";
    if (state === "failed") {
      const again = button(common.retry, { iconName: "reload", on: () => this.#desktop?.reopen() });
      this.#message(words.openFailed, message, [again], "error");
      return;
    }
    // Only while there is nothing at all to see; a picture that is there stays, with a sign that more is coming.
    const nothing = !this.element.dataset.picture;
    this.element.classList.toggle("opening", state === "opening" || (state === "picture" && this.element.classList.contains("opening")));
    if (nothing && state === "opening") this.#message(words.opening, "", [], "busy");
    else if (!nothing) this.#overlay.hidden = true;
  }

  #openStarting() {
    this.#phases = new Phases();
    this.#message(words.starting, "", []);
    this.#overlay.append(this.#phases.total, this.#phases.element);
  }

  #openPaused() {
    const on = button(words.resume, { on: () => this.#resume(on) });
    this.#message(states.paused, words.pausedText, [on]);
  }

  async #resume(clicked) {
    clicked.disabled = true;
    try {
      await resume(this.id);
    } catch (failure) {
      clicked.disabled = false;
      this.#message(words.resumeFailed, failure.message, [clicked], "error");
    }
  }

  #openEnded() {
    const failed = this.workspace.state === "failed";
    const retry = button(common.retry, { iconName: "reload", on: () => this.#retry(retry) });
    const remove = button(words.discard, { iconName: "trash", kind: "quiet", on: () => openDiscard(this.workspace) });
    const again = this.workspace.kind === "source" ? [retry, remove] : [remove];
    this.#message(failed ? words.failed : words.stopped, this.workspace.error ?? words.ended, again, "error");
    this.#addLogs();
  }

  async #addLogs() {
    let text = "";
    try {
      text = (await logs(this.id, 20)).trimEnd();
    } catch {
      return; // the message above says already that it failed; a missing log adds nothing
    }
    if (text && !this.#overlay.hidden) this.#overlay.append(h("pre", { className: "log", tabIndex: 0, textContent: text, aria: { label: words.logLabel } }));
  }

  /** A failed launch again: the same image, name, ports, limits and network. */
  async #retry(clicked) {
    clicked.disabled = true;
    const { image, name, ports, memory_limit: memory, disk_limit: disk, cpu_limit: cpus, network } = this.workspace;
    const limits = { ...(memory ? { memory } : {}), ...(disk ? { disk } : {}), ...(cpus ? { cpus } : {}) };
    try {
      await discard(this.id);
      await launch({ image, name, ports: Object.keys(ports).map(Number), ...limits, ...(network === "none" ? { network } : {}) });
    } catch (failure) {
      clicked.disabled = false;
      this.#message(words.againFailed, failure.message, [clicked], "error");
    }
  }

  #openConsole() {
    this.#console = new Console(this.workspace);
    this.#body.prepend(this.#console.element);
  }
}
