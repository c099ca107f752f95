// Everybody's workspaces: whose, what they use, who looks on.

import { choice, fillPart, table } from "./account_parts.js";
import { overview, quota } from "./admin_api.js";
import { openDiscard } from "./discard.js";
import { field } from "./dialog.js";
import { button, h, setText } from "./dom.js";
import { age, setSize, size } from "./format.js";
import { Memory } from "./memory.js";
import { store } from "./store.js";
import { states } from "./strings.js";
import { panels } from "./strings_panels.js";
import { everybodys as words } from "./strings_admin.js";

const EVERY = 5000;
const ALL = "";
// Not a name that a user can have.
const NOBODY = "-";

class Row {
  constructor(workspace) {
    this.id = workspace.id;
    this.cells = words.columns.map((column) => h("td", { data: { column } }));
    this.element = h("tr", {}, ...this.cells);
    const discard = button(words.discard, { kind: "danger-hover", on: () => openDiscard(store.workspaces.get(this.id)) });
    discard.setAttribute("aria-label", words.discardLabel(workspace.name));
    const history = h("a", { className: "button", href: `/admin/audit#workspace=${this.id}`, textContent: words.history, aria: { label: words.historyLabel(workspace.name) } });
    this.state = h("span");
    this.line = h("span", { className: "state-line" }, h("span", { className: "dot", aria: { hidden: "true" } }), this.state);
    this.cells[0].append(h("div", { className: "named" }, h("a", { href: `/w/${this.id}`, textContent: workspace.name }), h("span", { className: "mono hint", textContent: this.id })));
    this.cells[2].append(this.line);
    this.cells[7].append(h("div", { className: "row-actions" }, history, discard));
  }

  update(workspace, known, memory) {
    setText(this.cells[1], known?.owner ?? words.nobody);
    this.line.dataset.state = workspace.state;
    setText(this.state, states[workspace.state] ?? workspace.state);
    this.line.title = workspace.error ?? "";
    setText(this.cells[3], memory ? panels.inTree(size(memory.unique), size(memory.shared)) : "–");
    setText(this.cells[4], String(known?.viewers ?? 0));
    setText(this.cells[5], size(known?.traffic ?? 0));
    setText(this.cells[6], age(workspace.created));
  }
}

export async function workspacesPart(section, _, attempt, changes) {
  const rows = new Map();
  let known = {};
  const owner = h("select", {});
  const summary = h("p", { className: "summary", attributes: { role: "status" } });
  const list = table(words.title, words.columns, []);
  const body = list.querySelector("tbody");
  const empty = h("p", { textContent: words.none, hidden: true });
  fillPart(section, words, h("div", { className: "filters" }, field(words.owner, owner), summary), h("div", { className: "scrolls" }, list), empty);

  const ownerOf = (id) => known[id]?.owner ?? NOBODY;
  const memory = new Memory(
    () => [...store.workspaces.values()].filter((one) => ["ready", "forking"].includes(one.state)).map((one) => one.id),
    () => render(),
  );

  function render() {
    const chosen = owner.value;
    const shown = store.ordered().map(({ workspace }) => workspace).filter(({ id }) => chosen === ALL || ownerOf(id) === chosen);
    for (const id of [...rows.keys()].filter((one) => !shown.some((workspace) => workspace.id === one))) {
      rows.get(id).element.remove();
      rows.delete(id);
    }
    shown.forEach((workspace, index) => {
      if (!rows.has(workspace.id)) rows.set(workspace.id, new Row(workspace));
      const row = rows.get(workspace.id);
      row.update(workspace, known[workspace.id], memory.of(workspace.id));
      if (body.children[index] !== row.element) body.insertBefore(row.element, body.children[index] ?? null);
    });
    empty.hidden = !store.loaded || shown.length > 0;
    list.hidden = shown.length === 0;
  }

  function renderOwners() {
    const names = [...new Set([...store.workspaces.keys()].map(ownerOf))].sort();
    const key = names.join(" ");
    if (owner.dataset.key === key) return;
    owner.dataset.key = key;
    const chosen = owner.value;
    const fresh = choice([[ALL, words.all], ...names.map((name) => [name, name === NOBODY ? words.nobody : name])], ALL);
    owner.replaceChildren(...fresh.children);
    owner.value = ["", ...names].includes(chosen) ? chosen : ALL;
  }

  async function ask() {
    known = await overview();
    const { all } = await quota();
    const viewers = Object.values(known).reduce((sum, one) => sum + one.viewers, 0);
    const owners = new Set(Object.keys(known).map(ownerOf)).size;
    const amount = (name, shown, none) => words.of(shown(all.use[name]), all.limits[name] === null ? none : shown(all.limits[name]));
    const limits = Object.values(all.limits).every((value) => value === null)
      ? ""
      : words.limits(amount("workspaces", String, words.noLimit), amount("memory", setSize, words.noMemoryLimit), amount("disk", setSize, words.noMemoryLimit), amount("cpus", String, words.noLimit));
    setText(summary, words.summary(Object.keys(known).length, owners, viewers) + limits);
    renderOwners();
    render();
  }

  owner.addEventListener("change", render);
  changes.addEventListener("change", render);
  // A new workspace has its owner only in the portal's answer.
  for (const type of ["gone", "viewers", "snapshot", "fork"]) store.addEventListener(type, () => attempt(ask));
  setInterval(() => document.visibilityState === "visible" && ask().catch(() => {}), EVERY);
  await ask();
}
