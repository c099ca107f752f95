// The lineage: every workspace under the one it was forked from.

import { h, setName, setText } from "./dom.js";
import { age, size } from "./format.js";
import { Memory } from "./memory.js";
import { store } from "./store.js";
import { home, states } from "./strings.js";
import { panels } from "./strings_panels.js";

const RUNNING = ["ready", "forking"];

export class Tree {
  #items = new Map();
  #list = h("ul", { className: "tree" });
  #memory = new Memory(() => store.ordered().map(({ workspace }) => workspace).filter(({ state }) => RUNNING.includes(state)).map(({ id }) => id), (id) => this.#fillMemory(id));

  /** `choose(id)` is called for a workspace that somebody picked. */
  constructor(container, choose) {
    this.choose = choose;
    container.append(this.#list);
  }

  /** `shown`: ids in the grid's visible page; `current`: the one with the keyboard. */
  update(ordered, shown, current) {
    const wanted = new Set();
    const rows = new Map(ordered.map(({ workspace }, index) => [workspace.id, index]));
    ordered.forEach(({ workspace, depth }, index) => {
      wanted.add(workspace.id);
      const item = this.#items.get(workspace.id) ?? this.#create(workspace.id);
      if (this.#list.children[index] !== item.element) this.#list.insertBefore(item.element, this.#list.children[index] ?? null);
      this.#fill(item, workspace, depth);
      // How many rows the line to the parent has to climb.
      item.element.style.setProperty("--climb", String(index - (rows.get(workspace.parent) ?? index)));
      item.button.classList.toggle("shown", shown.has(workspace.id));
      if (workspace.id === current) item.button.setAttribute("aria-current", "true");
      else item.button.removeAttribute("aria-current");
    });
    for (const [id, item] of this.#items) {
      if (!wanted.has(id)) {
        item.element.remove();
        this.#items.delete(id);
      }
    }
  }

  #create(id) {
    const dot = h("span", { className: "dot", aria: { hidden: "true" } });
    const name = h("span", { className: "tree-name" });
    const detail = h("span", { className: "tree-detail" });
    const button = h("button", { type: "button", className: "tree-item", on: { click: () => this.choose(id) } }, dot, h("span", { className: "tree-text" }, name, detail));
    const memory = h("span", { className: "tree-detail", title: panels.memoryTitle, hidden: true });
    button.querySelector(".tree-text").append(memory);
    const item = { element: h("li", {}, button), button, dot, name, detail, memory };
    this.#items.set(id, item);
    return item;
  }

  #fill(item, workspace, depth) {
    const { id, name, state, created, parent, label = "" } = workspace;
    item.element.dataset.state = state;
    item.element.style.setProperty("--depth", String(Math.min(depth, 8)));
    item.element.classList.toggle("branch", depth > 0);
    setName(item.name, name);
    item.name.title = name;
    const lost = parent && !store.workspaces.has(parent) ? home.discarded(parent) : "";
    const words = [label || id, state === "ready" ? age(created) : states[state].toLowerCase(), lost].filter(Boolean);
    setText(item.detail, words.join(" · "));
    item.detail.title = words.join(" · ");
  }

  #fillMemory(id) {
    const item = this.#items.get(id);
    const figures = this.#memory.of(id);
    if (!item || !figures) return;
    item.memory.hidden = false;
    const text = panels.inTree(size(figures.unique), size(figures.shared));
    setText(item.memory, text);
    item.memory.title = `${text}. ${panels.memoryTitle}`;
  }
}
