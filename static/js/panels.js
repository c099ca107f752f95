// The tabs of a workspace's page: its desktop, and beside it a terminal, its files, its servers and what it changed.

import { ChangesPanel } from "./changes.js";
import { openClipboard } from "./clipboard_dialog.js";
import { button, h, replaceWhenChanged, setName } from "./dom.js";
import { FilesPanel } from "./files.js";
import { size } from "./format.js";
import { stats } from "./inside.js";
import { PortsPanel } from "./ports.js";
import { clipboard } from "./strings.js";
import { panels as words } from "./strings_panels.js";
import { TerminalPanel } from "./terminal.js";

const MEMORY_EVERY = 8000;
const RUNNING = ["ready", "forking"];
const NAMES = ["desktop", "terminal", "files", "ports", "changes"];

/** "412 MiB unique", never in two lines */
const figure = (amount, of) => h("span", { className: "memory-figure" }, h("strong", { textContent: amount }), ` ${of}`);

export class Panels {
  #tabs = new Map();
  #panels = new Map();
  #current = "desktop";
  #workspace = null;
  // Whether a panel may take the focus: not from somebody who walks through the tabs.
  #mayFocus = true;
  #memory = h("p", { className: "memory", hidden: true });
  #clipboard = button(clipboard.open, { iconName: "clipboard", kind: "quiet small", on: () => openClipboard(this.#workspace) });
  // Where a panel has the page for itself: whose it is.
  #name = h("p", { className: "panel-of" });

  /** `bar`: where the tabs go; `side`: where the panels go; `page`: what has `data-panel` set to the one that is shown. */
  constructor({ bar, side, page, id }) {
    this.id = id;
    this.side = side;
    this.page = page;
    const strip = h("div", { className: "tabs", attributes: { role: "tablist" }, aria: { label: words.label }, on: { keydown: (event) => this.#keys(event) } });
    for (const name of NAMES) {
      const tab = h("button", {
        type: "button", className: "tab", id: `tab-${name}`, textContent: words.names[name], attributes: { role: "tab" },
        aria: { selected: "false", controls: name === "desktop" ? "grid" : `panel-${name}` }, on: { click: () => this.#choose(name) },
      });
      this.#tabs.set(name, tab);
      strip.append(tab);
    }
    // The figures come late and become wider: what is clicked stands behind them, at the edge.
    this.#clipboard.hidden = true;
    bar.append(strip, h("div", { className: "panel-tools" }, this.#memory, this.#clipboard));
    side.append(this.#name);
    const context = { id, show: (name, ...rest) => this.show(name, ...rest), leave: () => this.#tabs.get(this.#current).focus(), mayFocus: () => this.#mayFocus };
    const made = { terminal: new TerminalPanel(context), files: new FilesPanel(context), ports: new PortsPanel(context), changes: new ChangesPanel(context) };
    for (const [name, panel] of Object.entries(made)) {
      Object.assign(panel.element, { id: `panel-${name}`, hidden: true });
      panel.element.setAttribute("role", "tabpanel");
      panel.element.setAttribute("aria-labelledby", `tab-${name}`);
      panel.element.classList.add("panel");
      this.#panels.set(name, panel);
      side.append(panel.element);
    }
    window.addEventListener("hashchange", () => this.#fromAddress());
    setInterval(() => this.#refreshMemory(), MEMORY_EVERY);
    this.#select("desktop");
  }

  /** The workspace as it is now. */
  update(workspace) {
    const first = this.#workspace === null;
    const ran = !first && RUNNING.includes(this.#workspace.state);
    this.#workspace = workspace;
    setName(this.#name, workspace.name);
    const runs = RUNNING.includes(workspace.state);
    for (const panel of this.#panels.values()) panel.update?.(workspace, runs);
    this.#clipboard.hidden = !workspace.desktop || workspace.state !== "ready";
    if (runs && !ran) this.#refreshMemory();
    if (first) this.#fromAddress();
  }

  /** Show a panel; what else is given goes to it. */
  show(name, ...rest) {
    if (!NAMES.includes(name)) return;
    history.replaceState(null, "", name === "desktop" ? location.pathname : `#${name}`);
    this.#select(name, ...rest);
  }

  #choose(name) {
    this.#mayFocus = true;
    this.show(name);
  }

  #fromAddress() {
    const name = location.hash.slice(1);
    this.#select(NAMES.includes(name) ? name : "desktop");
  }

  #select(name, ...rest) {
    this.#current = name;
    this.page.dataset.panel = name;
    this.side.hidden = name === "desktop";
    for (const [other, tab] of this.#tabs) {
      tab.setAttribute("aria-selected", String(other === name));
      tab.tabIndex = other === name ? 0 : -1;
    }
    for (const [other, panel] of this.#panels) {
      panel.element.hidden = other !== name;
      if (other !== name) panel.hide?.();
    }
    if (this.#workspace) this.#panels.get(name)?.shown(...rest);
  }

  #keys(event) {
    const at = NAMES.indexOf(this.#current);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: NAMES.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const name = NAMES[(to + NAMES.length) % NAMES.length];
    this.#mayFocus = false;
    this.show(name);
    this.#tabs.get(name).focus();
  }

  async #refreshMemory() {
    if (document.visibilityState !== "visible" || !this.#workspace || !RUNNING.includes(this.#workspace.state)) return;
    try {
      const { unique_bytes: unique, shared_bytes: shared, disk_bytes: disk, disk_limit: limit, disk_counted: counted } = await stats(this.id);
      this.#memory.hidden = false;
      this.#memory.title = words.memoryTitle;
      replaceWhenChanged(this.#memory, `${size(unique)} ${size(shared)} ${size(disk)} ${limit} ${counted}`, () => [
        words.memory, " ",
        figure(size(unique), words.unique), " ",
        figure(size(shared), words.shared), " ",
        figure(size(limit ? (counted ?? disk) : disk), limit ? words.diskOf(size(limit)) : words.disk),
      ]);
    } catch {
      this.#memory.hidden = true; // figures are no reason for a message
    }
  }
}
