// All workspaces: the lineage beside a grid of tiles, of which one streams, or all.

import { openApi } from "./api_dialog.js";
import { buildPart } from "./builds.js";
import { openDiscard } from "./discard.js";
import { Divider } from "./divider.js";
import { button, h, icon, replaceWhenChanged } from "./dom.js";
import { followKeyboard } from "./keyboard.js";
import { openLaunch } from "./launch.js";
import { CHOICES, layout } from "./layout.js";
import { Leader } from "./leader.js";
import { openHelp } from "./help.js";
import { arranged, swap } from "./order.js";
import { startPage } from "./shell.js";
import { store } from "./store.js";
import { home as words, keys } from "./strings.js";
import { Tile } from "./tile.js";
import { draggable } from "./tile_drag.js";
import { Tree } from "./tree.js";

const CHOSEN_KEY = "tclone-chosen";
const NARROW = window.matchMedia("(max-width: 759px)");

const grid = document.getElementById("grid");
const empty = document.getElementById("empty");
const toolbar = document.getElementById("toolbar");
const building = h("div", { className: "builds" });
const tiles = new Map();
let first = 0;
let keyboard = null;
// The workspace that is worked in: the one that streams.
let chosen = sessionStorage.getItem(CHOSEN_KEY);

const tree = new Tree(document.getElementById("tree"), choose);

// Between the large tile and the strip. The large one keeps at least half of the room.
const strip = new Divider({
  label: words.strip,
  key: "tclone-strip",
  least: 140,
  most: () => grid.clientWidth / 2,
  first: 240,
  onMove: (width) => grid.style.setProperty("--strip", `${width}px`),
});

const inOrder = () => arranged(store.ordered());
const placeOf = (id) => inOrder().findIndex(({ workspace }) => workspace.id === id);

function remember(id) {
  chosen = id;
  sessionStorage.setItem(CHOSEN_KEY, id);
}

/** Bring a workspace into view, let it stream and give it the keyboard. */
function choose(id) {
  const slots = layout.capacity(store.workspaces.size);
  first = Math.floor(placeOf(id) / slots) * slots;
  remember(id);
  document.body.classList.remove("tree-open");
  render();
  const tile = tiles.get(id);
  tile?.element.scrollIntoView({ block: "nearest" });
  tile?.focusDesktop();
}

function chooseNext(by) {
  const ordered = inOrder();
  if (ordered.length) choose(ordered[(Math.max(0, placeOf(chosen)) + by + ordered.length) % ordered.length].workspace.id);
}

function render() {
  const ordered = inOrder();
  const slots = layout.capacity(ordered.length);
  if (first >= ordered.length) first = Math.max(0, Math.floor((ordered.length - 1) / slots) * slots);
  const visible = ordered.slice(first, first + slots);
  const shown = new Set(visible.map(({ workspace }) => workspace.id));
  renderToolbar(ordered.length, slots);
  // Before the tiles: a hidden grid has no size to arrange them by.
  grid.hidden = ordered.length === 0;
  document.body.classList.toggle("is-empty", ordered.length === 0);
  renderTiles(visible, shown);
  arrange();
  renderEmpty(ordered.length === 0);
  tree.update(store.ordered(), shown, keyboard ?? (layout.allLive ? null : chosen));
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
      tile = new Tile(workspace, { choose, hear });
      draggable(tile, exchange);
      tiles.set(workspace.id, tile);
      grid.append(tile.element);
    }
    // A frame that moves in the document loads again, so tiles stay where they are and only their order changes.
    tile.element.style.order = String(index);
  });
  if (!shown.has(chosen)) {
    const stand = visible.find(({ workspace }) => workspace.desktop) ?? visible[0];
    if (stand) remember(stand.workspace.id);
  }
  for (const [id, tile] of tiles) {
    tile.setLive(layout.allLive || id === chosen);
    tile.element.classList.toggle("chosen", id === chosen);
    // One is heard at a time.
    tile.setAudible(id === chosen);
  }
}

/** Columns by the room there is; in a spotlight the chosen tile has most of it. */
function arrange() {
  const spotlight = layout.spotlight(tiles.size);
  grid.classList.toggle("spotlight", spotlight);
  if (!spotlight) strip.element.remove();
  else if (!strip.element.isConnected) grid.append(strip.element);
  if (spotlight) strip.fit();
  const { columns, row } = layout.grid(tiles.size, grid.clientWidth, grid.clientHeight);
  grid.style.gridTemplateColumns = spotlight ? "" : `repeat(${columns}, minmax(0, 1fr))`;
  grid.style.gridAutoRows = spotlight ? "" : `${Math.floor(row)}px`;
}

function renderToolbar(count, slots) {
  const key = JSON.stringify([count, slots, layout.choice, layout.allLive, first, count > 1 && chosen]);
  replaceWhenChanged(toolbar, key, () => {
    const choices = CHOICES.map((value) =>
      h("button", { type: "button", textContent: value === "auto" ? words.auto : value, aria: { pressed: String(value === layout.choice), label: value === "auto" ? words.autoLabel : words.tilesLabel(Number(value)) }, on: { click: () => setLayout(value) } }),
    );
    const heading = h("h1", { className: "toolbar-title", textContent: words.title });
    const treeButton = button(words.lineage, { iconName: "tree", kind: "quiet tree-toggle", on: () => document.body.classList.toggle("tree-open") });
    const parts = [treeButton, heading, h("span", { className: "count", textContent: String(count) }), h("span", { className: "spacer" })];
    if (count > slots) parts.push(pager(count, slots));
    if (count > 1) parts.push(h("a", { className: "button quiet", href: compareAddress(), aria: { label: words.compare } }, icon("sides"), h("span", { textContent: words.compare })));
    const live = h("button", { type: "button", className: "button toggle", title: words.allLiveTitle, aria: { pressed: String(layout.allLive), label: words.allLive }, on: { click: () => (layout.allLive = !layout.allLive) } }, icon("live"), h("span", { textContent: words.allLive }));
    const help = button(words.help, { iconName: "keyboard", iconOnly: true, caption: words.helpCaption, kind: "quiet help", on: () => openHelp(leader.commands) });
    parts.push(live, h("div", { className: "layouts", attributes: { role: "group", "aria-label": words.layout } }, ...choices), help);
    return parts;
  });
}

function setLayout(value) {
  first = 0;
  layout.choice = value;
}

/** The chosen one beside its source, or beside the one after it. */
function compareAddress() {
  const ordered = store.ordered().filter(({ workspace }) => workspace.desktop);
  const index = Math.max(0, ordered.findIndex(({ workspace }) => workspace.id === chosen));
  const one = ordered[index]?.workspace;
  const other = (store.workspaces.get(one?.parent) ?? ordered[(index + 1) % ordered.length]?.workspace);
  return one && other && other.id !== one.id ? `/compare/${other.id}/${one.id}` : "/compare";
}

function pager(count, slots) {
  const move = (by) => {
    first += by;
    render();
  };
  const previous = button(words.previous, { iconName: "left", iconOnly: true, kind: "quiet", on: () => move(-slots) });
  const next = button(words.next, { iconName: "right", iconOnly: true, kind: "quiet", on: () => move(slots) });
  previous.disabled = first === 0;
  next.disabled = first + slots >= count;
  return h("div", { className: "pager" }, previous, h("span", { textContent: words.range(first + 1, Math.min(first + slots, count), count) }), next);
}

function renderEmpty(isEmpty) {
  empty.hidden = !isEmpty;
  if (!isEmpty) return;
  // Of the first image, above all: whoever comes right after the set-up sees what is still to wait for.
  replaceWhenChanged(building, JSON.stringify([...store.builds.keys()]), () => [...store.builds.keys()].map((image) => buildPart(image)));
  if (empty.firstChild) return;
  empty.append(
    h("div", { className: "empty-art", aria: { hidden: "true" } }, icon("fork")),
    h("h2", { textContent: words.emptyTitle }),
    h("p", { textContent: words.emptyText }),
    button(words.emptyAction, { kind: "primary", on: () => openLaunch() }),
    building,
  );
}

/** Two tiles change places. */
function exchange(one, other) {
  swap(store.ordered(), one, other);
  render();
}

/** The chosen tile changes places with the one before or behind it. */
function moveBy(by) {
  const other = inOrder()[placeOf(chosen) + by]?.workspace.id;
  if (!other) return;
  exchange(chosen, other);
  choose(chosen);
}

// Keyboard

const current = () => tiles.get(chosen) ?? null;
const commands = keys.commands;
const leader = new Leader([
  { keys: ["1", "2", "3", "4", "5", "6", "7", "8", "9"], shown: "1 – 9", label: commands.tile, run: (key) => chooseNumber(Number(key)) },
  { keys: ["n", "ArrowRight"], shown: "N", label: commands.next, run: () => chooseNext(1) },
  { keys: ["p", "ArrowLeft"], shown: "P", label: commands.previous, run: () => chooseNext(-1) },
  { keys: ["f"], shown: "F", label: commands.fork, run: () => current().openFork(), enabled: () => current()?.workspace.state === "ready" },
  { keys: ["l"], shown: "L", label: commands.launch, run: () => openLaunch() },
  { keys: ["d"], shown: "D", label: commands.discard, run: () => openDiscard(current().workspace), enabled: () => current() !== null },
  { keys: ["o"], shown: "O", label: commands.alone, run: () => location.assign(`/w/${chosen}`), enabled: () => current() !== null },
  { keys: ["t"], shown: "T", label: commands.control, run: () => current().control.change(), enabled: () => current() !== null },
  { keys: ["k"], shown: "K", label: commands.keep, run: () => current().control.keepAlive(), enabled: () => current() !== null },
  { keys: ["s"], shown: "S", label: commands.api, run: () => openApi(current().workspace), enabled: () => current() !== null },
  { keys: ["c"], shown: "C", label: commands.compare, run: () => location.assign(compareAddress()), enabled: () => tiles.size > 1 },
  { keys: ["["], shown: "[", label: commands.earlier, run: () => moveBy(-1), enabled: () => placeOf(chosen) > 0 },
  { keys: ["]"], shown: "]", label: commands.later, run: () => moveBy(1), enabled: () => placeOf(chosen) < store.workspaces.size - 1 },
  { keys: ["a"], shown: "A", label: commands.live, run: () => (layout.allLive = !layout.allLive) },
]);

function chooseNumber(number) {
  const tile = [...tiles.values()].find(({ element }) => element.style.order === String(number - 1));
  if (tile) choose(tile.id);
}

/** What a viewer said. Only the one that has the keyboard may ask for the shortcut bar; a click into one makes it the chosen one. */
function hear(tile, type) {
  if (type === "leader" && document.activeElement === tile.frame) leader.open(() => tile.focusDesktop());
}

followKeyboard(
  () => tiles.values(),
  (id) => {
    keyboard = id;
    if (id !== null) remember(id);
    if (store.loaded) render();
  },
);

layout.addEventListener("change", () => store.loaded && render());
new ResizeObserver(() => store.loaded && arrange()).observe(grid);

/** After a fork: show the page on which the source and its first branch stand side by side. */
store.addEventListener("fork", (event) => {
  const index = placeOf(event.detail.workspace);
  const slots = layout.capacity(store.workspaces.size);
  if (index < 0) return;
  if (index < first || index + 1 >= first + slots) first = slots > 1 ? index : first;
  if (slots === 1 && !NARROW.matches) setLayout("auto");
});

startPage(render);
