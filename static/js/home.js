// All workspaces: the lineage beside a grid of live tiles.

import { button, h, icon, replaceWhenChanged } from "./dom.js";
import { plural } from "./format.js";
import { followKeyboard } from "./keyboard.js";
import { openLaunch } from "./launch.js";
import { startPage } from "./shell.js";
import { store } from "./store.js";
import { Tile } from "./tile.js";
import { Tree } from "./tree.js";

const LAYOUTS = [["auto", "Auto"], ["1", "1"], ["2", "2"], ["4", "4"], ["9", "9"]];
const LAYOUT_KEY = "tclone-layout";
const NARROW = window.matchMedia("(max-width: 759px)");

const grid = document.getElementById("grid");
const empty = document.getElementById("empty");
const toolbar = document.getElementById("toolbar");
const tiles = new Map();
let layout = localStorage.getItem(LAYOUT_KEY) ?? "auto";
if (!LAYOUTS.some(([value]) => value === layout)) layout = "auto";
let first = 0;
let keyboard = null;

const tree = new Tree(document.getElementById("tree"), choose);

function capacity(count) {
  if (layout !== "auto") return Number(layout);
  return [1, 2, 4, 9].find((size) => count <= size) ?? 9;
}

/** Bring a workspace into view and give it the keyboard. */
function choose(id) {
  const index = store.ordered().findIndex(({ workspace }) => workspace.id === id);
  const slots = capacity(store.workspaces.size);
  first = Math.floor(index / slots) * slots;
  document.body.classList.remove("tree-open");
  render();
  const tile = tiles.get(id);
  tile?.element.scrollIntoView({ block: "nearest" });
  tile?.focusDesktop();
}

function setLayout(value) {
  layout = value;
  localStorage.setItem(LAYOUT_KEY, value);
  first = 0;
  render();
}

function render() {
  const ordered = store.ordered();
  const slots = capacity(ordered.length);
  if (first >= ordered.length) first = Math.max(0, Math.floor((ordered.length - 1) / slots) * slots);
  const visible = ordered.slice(first, first + slots);
  const shown = new Set(visible.map(({ workspace }) => workspace.id));
  renderToolbar(ordered.length, slots);
  renderTiles(visible, shown);
  grid.dataset.layout = String(layout === "auto" ? Math.min(slots, fitting(visible.length)) : slots);
  grid.hidden = ordered.length === 0;
  document.body.classList.toggle("is-empty", ordered.length === 0);
  renderEmpty(ordered.length === 0);
  tree.update(ordered, shown, keyboard);
}

/** The smallest layout that holds so many tiles. */
function fitting(count) {
  return [1, 2, 4, 6, 9].find((size) => count <= size) ?? 9;
}

function renderTiles(visible, shown) {
  for (const [id, tile] of tiles) {
    if (!shown.has(id)) {
      tile.dispose();
      tiles.delete(id);
    }
  }
  visible.forEach(({ workspace }, index) => {
    let tile = tiles.get(workspace.id);
    if (tile) tile.update(workspace);
    else {
      tile = new Tile(workspace);
      tiles.set(workspace.id, tile);
      grid.append(tile.element);
    }
    // A frame that moves in the document loads again, so tiles stay where they are and only their order changes.
    tile.element.style.order = String(index);
  });
}

function renderToolbar(count, slots) {
  const key = JSON.stringify([count, slots, layout, first]);
  replaceWhenChanged(toolbar, key, () => {
    const choices = LAYOUTS.map(([value, label]) => {
      const element = h("button", { type: "button", textContent: label, aria: { pressed: String(value === layout), label: value === "auto" ? "Layout by number of workspaces" : `${plural(Number(value), "tile")} at once` }, on: { click: () => setLayout(value) } });
      return element;
    });
    const heading = h("h1", { className: "toolbar-title", textContent: "Workspaces" });
    const treeButton = button("Lineage", { iconName: "tree", kind: "quiet tree-toggle", on: () => document.body.classList.toggle("tree-open") });
    const parts = [treeButton, heading, h("span", { className: "count", textContent: String(count) }), h("span", { className: "spacer" })];
    if (count > slots) parts.push(pager(count, slots));
    parts.push(h("div", { className: "layouts", attributes: { role: "group", "aria-label": "Layout" } }, ...choices));
    return parts;
  });
}

function pager(count, slots) {
  const move = (by) => {
    first += by;
    render();
  };
  const previous = button("Previous tiles", { iconName: "left", iconOnly: true, kind: "quiet", on: () => move(-slots) });
  const next = button("Next tiles", { iconName: "right", iconOnly: true, kind: "quiet", on: () => move(slots) });
  previous.disabled = first === 0;
  next.disabled = first + slots >= count;
  const last = Math.min(first + slots, count);
  const range = slots === 1 ? `${last} of ${count}` : `${first + 1}–${last} of ${count}`;
  return h("div", { className: "pager" }, previous, h("span", { textContent: range }), next);
}

function renderEmpty(isEmpty) {
  empty.hidden = !isEmpty;
  if (!isEmpty || empty.firstChild) return;
  empty.append(
    h("div", { className: "empty-art", aria: { hidden: "true" } }, icon("fork")),
    h("h2", { textContent: "No workspaces yet" }),
    h("p", { textContent: "Launch a desktop, work in it, then fork it while it runs: every copy goes on from the same moment." }),
    button("Launch a desktop", { kind: "primary", on: () => openLaunch() }),
  );
}

followKeyboard(
  () => tiles.values(),
  (id) => {
    keyboard = id;
    if (store.loaded) render();
  },
);

/** After a fork: show the page on which the source and its first branch stand side by side. */
store.addEventListener("fork", (event) => {
  const source = event.detail.workspace;
  const ordered = store.ordered();
  const slots = capacity(ordered.length);
  const index = ordered.findIndex(({ workspace }) => workspace.id === source);
  if (index < 0) return;
  if (index < first || index + 1 >= first + slots) first = slots > 1 ? index : first;
  if (slots === 1 && !NARROW.matches) setLayout("auto");
});

startPage(render);
