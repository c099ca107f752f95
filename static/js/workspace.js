// One workspace alone, as large as the window.

import { h } from "./dom.js";
import { followKeyboard } from "./keyboard.js";
import { Panels } from "./panels.js";
import { startPage } from "./shell.js";
import { store } from "./store.js";
import { Tile } from "./tile.js";

const id = document.body.dataset.workspace;
const grid = document.getElementById("grid");
const empty = document.getElementById("empty");
const page = document.getElementById("solo-body");
const bar = document.getElementById("panel-bar");
let tile = null;
let panels = null;

function render() {
  const workspace = store.workspaces.get(id);
  page.hidden = bar.hidden = !workspace;
  empty.hidden = Boolean(workspace);
  if (!workspace) {
    tile?.dispose();
    tile = null;
    showMissing();
    return;
  }
  document.title = `${workspace.name} · TClone`;
  panels ??= new Panels({ bar, side: document.getElementById("side"), page, id });
  panels.update(workspace);
  if (tile) {
    tile.update(workspace);
    return;
  }
  tile = new Tile(workspace, { solo: true });
  grid.append(tile.element);
  if (!location.hash) tile.focusDesktop();
}

function showMissing() {
  if (empty.firstChild) return;
  empty.append(h("h1", { textContent: `${id} is not here` }), h("p", { textContent: "It was discarded, or never was." }), h("a", { className: "button primary", href: "/", textContent: "All workspaces" }));
}

followKeyboard(() => (tile ? [tile] : []), () => {});
startPage(render);
