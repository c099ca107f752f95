// The servers of a workspace: every port that something listens on, where it is published, and buttons to publish it or not.

import { copy } from "./clipboard.js";
import { button, h, icon, replaceWhenChanged } from "./dom.js";
import { markFault } from "./faults.js";
import { listeners, one, publish, unpublish } from "./inside.js";
import { Note, panelHead } from "./panel.js";
import { snippet } from "./snippets.js";
import { ports as words } from "./strings_panels.js";
import { toast } from "./toast.js";

const EVERY = 4000;

export class PortsPanel {
  #timer = null;
  #workspace = null;
  #runs = false;
  #found = [];
  #list = h("ul", { className: "port-list" });
  // The list comes anew every few seconds: what it says must not take away the answer to what somebody asked for.
  #state = new Note();
  #note = new Note();
  #number = h("input", { type: "text", inputMode: "numeric", id: "publish-port", className: "port-number", placeholder: words.example, autocomplete: "off" });

  constructor({ id }) {
    this.id = id;
    const form = h(
      "form",
      { className: "publish", noValidate: true, on: { submit: (event) => this.#publishTyped(event) } },
      h("label", { htmlFor: "publish-port", textContent: words.other }),
      this.#number,
      h("button", { type: "submit", className: "button", textContent: words.publish }),
    );
    const same = snippet(() => ({ method: "POST", path: `${one(this.id)}/ports/${Number(this.#number.value) || 8000}` }));
    this.#number.addEventListener("input", same.refresh);
    const intro = h("p", { className: "panel-hint", textContent: words.intro });
    this.element = h("section", { className: "ports-panel" }, panelHead(words.title), intro, this.#state.element, this.#note.element, this.#list, form, same.element);
  }

  update(workspace, runs) {
    this.#workspace = workspace;
    this.#runs = runs;
    this.#render();
  }

  shown() {
    this.#refresh();
    this.#timer ??= setInterval(() => document.visibilityState === "visible" && this.#refresh(), EVERY);
  }

  hide() {
    clearInterval(this.#timer);
    this.#timer = null;
  }

  async #refresh() {
    if (!this.#runs) {
      this.#state.say(words.notRunning);
      return;
    }
    try {
      this.#found = await listeners(this.id);
      this.#state.say(this.#found.length || Object.keys(this.#workspace.ports).length ? "" : words.none);
    } catch (failure) {
      this.#state.say(failure.message, "error");
    }
    this.#render();
  }

  /** One row for each port: all that listen, and the published ones that nothing listens on. */
  #rows() {
    const rows = new Map();
    for (const { port, address, command, pid, desktop } of this.#found) {
      const row = rows.get(port) ?? { port, addresses: [], desktop };
      row.addresses.push(address);
      row.command ??= command;
      row.pid ??= pid;
      rows.set(port, row);
    }
    for (const port of Object.keys(this.#workspace?.ports ?? {}).map(Number)) if (!rows.has(port)) rows.set(port, { port, addresses: [] });
    return [...rows.values()].map((row) => ({ ...row, host: this.#workspace?.ports[row.port] ?? null })).sort((a, b) => a.port - b.port);
  }

  #render() {
    const rows = this.#rows();
    replaceWhenChanged(this.#list, JSON.stringify(rows), () => rows.map((row) => this.#row(row)));
  }

  #row({ port, addresses, command, pid, desktop, host }) {
    const what = command ? [h("strong", { textContent: command }), h("span", { className: "muted", textContent: ` ${words.pid(pid)}` })] : [h("span", { className: "muted", textContent: addresses.length ? words.unknown : words.silent })];
    const where = h("span", { className: "muted mono", textContent: addresses.join(", ") });
    const head = h("div", { className: "port-row" }, h("span", { className: "port-inside mono", textContent: `:${port}` }), h("span", { className: "port-what" }, ...what), where);
    if (desktop) return h("li", {}, head, h("p", { className: "panel-hint", textContent: words.desktop }));
    if (!host) return h("li", {}, head, h("div", { className: "port-row" }, button(words.publish, { title: words.publishTitle(port), on: (event) => this.#change(event.currentTarget, () => publish(this.id, port)) })));
    const address = `http://localhost:${host}/`;
    const link = h("a", { className: "mono", href: address, target: "_blank", rel: "noopener noreferrer" }, `localhost:${host}`, icon("external"));
    const buttons = [
      button(words.copyUrl, { kind: "quiet", on: () => copyShown(address) }),
      button(words.copyCurl, { kind: "quiet", on: () => copyShown(`curl ${address}`) }),
      button(words.unpublish, { kind: "quiet danger-hover", title: words.unpublishTitle(port), on: (event) => this.#change(event.currentTarget, () => unpublish(this.id, port)) }),
    ];
    return h("li", {}, head, h("div", { className: "port-row" }, link, ...buttons));
  }

  async #change(clicked, work) {
    clicked.disabled = true;
    try {
      await work();
      this.#note.say("");
    } catch (failure) {
      clicked.disabled = false;
      this.#note.say(failure.message, "error");
    }
    this.#refresh();
  }

  #publishTyped(event) {
    event.preventDefault();
    const port = Number(this.#number.value.trim());
    if (!Number.isInteger(port) || port < 1 || port > 65535) {
      this.#note.say(words.notAPort, "error");
      markFault(this.#number, this.#note.element);
      return;
    }
    this.#number.value = "";
    this.#change(event.submitter, () => publish(this.id, port)).then(() => (event.submitter.disabled = false));
  }
}

async function copyShown(text) {
  if (await copy(text)) toast(words.copied, text);
  else toast(words.notCopied, text, { kind: "error" });
}
