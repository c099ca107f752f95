// Two desktops side by side, both streaming; what is done in one can be done in both.

import { button, h, icon, replaceWhenChanged } from "./dom.js";
import { followKeyboard } from "./keyboard.js";
import { openLaunch } from "./launch.js";
import { Leader } from "./leader.js";
import { Mirror } from "./mirror.js";
import { startPage } from "./shell.js";
import { store } from "./store.js";
import { compare as words, keys, solo } from "./strings.js";
import { Tile } from "./tile.js";

const SIDES = ["left", "right"];

const grid = document.getElementById("grid");
const toolbar = document.getElementById("toolbar");
const warning = document.getElementById("mirror-warning");
const empty = document.getElementById("empty");
const tiles = new Map();
// In the place of a side that cannot be shown.
const places = SIDES.map(() => h("section", { className: "tile missing", attributes: { role: "status" }, hidden: true }));
places.forEach((place, side) => (place.style.order = String(side)));
grid.append(...places);
let sides = [document.body.dataset.left, document.body.dataset.right];
let mirror = null;

const desktops = () => store.ordered().map(({ workspace }) => workspace).filter((workspace) => workspace.desktop);
const here = () => sides.map((id, side) => (side === 1 && id === sides[0] ? null : tiles.get(id) ?? null));

function render() {
  const all = desktops();
  // Only a side that the address leaves open is chosen here; one that is named and cannot be shown says so.
  SIDES.forEach((_, side) => {
    if (!sides[side]) sides[side] = all.find((workspace) => workspace.id !== sides[1 - side])?.id ?? "";
  });
  const enough = Boolean(sides[0] && sides[1]);
  // There is nothing to choose from.
  toolbar.hidden = grid.hidden = !enough;
  empty.hidden = enough;
  if (!enough && !empty.firstChild) {
    empty.append(h("h1", { textContent: words.few }), h("p", { textContent: words.fewText }), h("a", { className: "button primary", href: "/", textContent: solo.all }));
  }
  const faults = SIDES.map((_, side) => (enough ? faultOf(side) : null));
  renderTiles(enough ? sides.map((id, side) => (faults[side] ? null : id)) : []);
  renderFaults(faults);
  renderToolbar(all);
  document.title = enough ? `${sides.map((id) => store.workspaces.get(id)?.name ?? id).join(" | ")} · TClone` : document.title;
}

/** Why a side cannot be shown, as title and text, or null. */
function faultOf(side) {
  const workspace = store.workspaces.get(sides[side]);
  if (!workspace) return [words.missing(sides[side]), words.missingText];
  if (!workspace.desktop) return [words.noDesktop(workspace.name), words.noDesktopText];
  if (side === 1 && sides[0] === sides[1]) return [words.twice(workspace.name), words.twiceText];
  return null;
}

function renderFaults(faults) {
  faults.forEach((fault, side) => {
    places[side].hidden = fault === null;
    replaceWhenChanged(places[side], JSON.stringify(fault), () => (fault ? [h("h2", { textContent: fault[0] }), h("p", { textContent: fault[1] })] : []));
  });
}

function renderTiles(wanted) {
  for (const [id, tile] of tiles) {
    if (!wanted.includes(id)) {
      setMirror(false);
      tile.dispose();
      tiles.delete(id);
    }
  }
  wanted.forEach((id, index) => {
    if (id === null) return;
    const workspace = store.workspaces.get(id);
    let tile = tiles.get(id);
    if (tile) tile.update(workspace);
    else {
      tile = new Tile(workspace, { choose: () => tile.focusDesktop(), hear });
      tiles.set(id, tile);
      grid.append(tile.element);
      tile.setLive(true);
    }
    tile.element.style.order = String(index);
  });
  if (mirror && !here().every((tile) => tile?.canStream)) setMirror(false);
  renderSound();
}

function renderToolbar(all) {
  const usable = here().every((tile) => tile?.canStream);
  const key = JSON.stringify([all.map(({ id, name, label }) => [id, name, label]), sides, mirror !== null, usable]);
  replaceWhenChanged(toolbar, key, () => {
    const toggle = h("button", { type: "button", className: "button toggle", title: words.mirrorTitle, disabled: !usable, aria: { pressed: String(mirror !== null), label: words.mirror }, on: { click: () => setMirror(mirror === null) } }, icon("mirror"), h("span", { textContent: words.mirror }));
    const swap = button(words.swap, { iconName: "swap", iconOnly: true, kind: "quiet", on: () => show([sides[1], sides[0]]) });
    return [h("h1", { className: "toolbar-title", textContent: words.title }), choice(0, all), swap, choice(1, all), h("span", { className: "spacer" }), toggle];
  });
}

function choice(side, all) {
  const shown = all.some(({ id }) => id === sides[side]) && faultOf(side) === null;
  const none = shown ? [] : [h("option", { value: "", textContent: words.choose, selected: true, disabled: true })];
  const options = all.filter(({ id }) => id !== sides[1 - side]).map(({ id, name, label }) => h("option", { value: id, textContent: label ? `${name}: ${label}` : name, selected: shown && id === sides[side] }));
  const change = (event) => {
    const next = [...sides];
    next[side] = event.target.value;
    show(next);
  };
  return h("select", { className: "side", aria: { label: words[SIDES[side]] }, on: { change } }, ...none, ...options);
}

/** Compare another pair; its address is that of the page, so that a reload shows it again. */
function show(next) {
  sides = next;
  history.replaceState(null, "", `/compare/${sides[0]}/${sides[1]}`);
  render();
}

function setMirror(on) {
  if (on === (mirror !== null)) return;
  if (on) {
    for (const tile of here()) tile.release();
    mirror = new Mirror(here());
  } else {
    mirror.close();
    mirror = null;
  }
  document.body.classList.toggle("mirroring", on);
  warning.hidden = !on;
  renderToolbar(desktops());
}

warning.append(icon("mirror"), h("strong", { textContent: words.mirrorOn }), button(words.mirrorStop, { on: () => setMirror(false) }));

const commands = keys.commands;
const forkable = (side) => here()[side]?.workspace.state === "ready";
const leader = new Leader([
  { keys: ["1"], shown: "1", label: words.left, run: () => here()[0].focusDesktop(), enabled: () => here()[0] !== null },
  { keys: ["2"], shown: "2", label: words.right, run: () => here()[1].focusDesktop(), enabled: () => here()[1] !== null },
  { keys: ["m"], shown: "M", label: words.mirror, run: () => setMirror(mirror === null), enabled: () => here().every((tile) => tile?.canStream) },
  { keys: ["f"], shown: "F", label: commands.fork, run: () => here()[0].openFork(), enabled: () => forkable(0) },
  { keys: ["l"], shown: "L", label: commands.launch, run: () => openLaunch() },
  { keys: ["h"], shown: "H", label: commands.home, run: () => location.assign("/") },
]);

function hear(tile, type) {
  if (type === "leader" && document.activeElement === tile.frame) leader.open(() => tile.focusDesktop());
}

/** One is heard: that which had the keyboard last, at first the left one. */
let heard = null;
function renderSound() {
  const [left] = here();
  for (const tile of tiles.values()) tile.setAudible(tile.id === (tiles.has(heard) ? heard : left?.id));
}

followKeyboard(
  () => tiles.values(),
  (id) => {
    heard = id ?? heard;
    renderSound();
  },
);
startPage(render);
