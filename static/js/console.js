// What a tile shows of a workspace without a desktop: what it is, the way to its terminal, and the end of its log.

import { logs } from "./api.js";
import { h, replaceWhenChanged, setText } from "./dom.js";
import { age, size } from "./format.js";
import { tile as words } from "./strings.js";

const LOG_TAIL = 40;
const LOG_EVERY = 4000;

export class Console {
  #id;
  #facts = h("dl", { className: "facts" });
  #log;
  #timer;

  constructor(workspace) {
    this.#id = workspace.id;
    this.#log = h("pre", { className: "log", tabIndex: 0, hidden: true, aria: { label: words.logOf(workspace.name) } });
    this.empty = h("p", { className: "hint", textContent: words.logEmpty });
    const terminal = h("a", { href: `/w/${encodeURIComponent(workspace.id)}#terminal`, textContent: words.toTerminal });
    this.element = h("div", { className: "console" }, this.#facts, h("p", { className: "console-hint" }, words.noDesktop, " ", terminal), this.empty, this.#log);
    this.update(workspace);
    this.#refresh();
    this.#timer = setInterval(() => this.#refresh(), LOG_EVERY);
  }

  update({ image, created, memory_limit: memory, disk_limit: disk, cpu_limit: cpus, network }) {
    const rows = [[words.image, image], [words.age, age(created)], [words.memory, memory ? size(memory) : words.none], ...(disk ? [[words.disk, size(disk)]] : []), ...(cpus ? [[words.cpus, cpus]] : []), [words.network, network]];
    replaceWhenChanged(this.#facts, JSON.stringify(rows), () => rows.map(([term, value]) => h("div", {}, h("dt", { textContent: term }), h("dd", { textContent: value }))));
  }

  close() {
    clearInterval(this.#timer);
    this.element.remove();
  }

  async #refresh() {
    if (document.visibilityState !== "visible") return;
    try {
      this.#show((await logs(this.#id, LOG_TAIL)).trimEnd());
    } catch (failure) {
      this.#show(failure.message);
    }
  }

  #show(text) {
    const log = this.#log;
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    // An empty log is a line, not an empty box.
    log.hidden = !text;
    this.empty.hidden = Boolean(text);
    setText(log, text);
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
}
