// One workspace alone, as large as the window.

import { h } from "./dom.js";
import { followKeyboard } from "./keyboard.js";
import { startPage } from "./shell.js";
import { store } from "./store.js";
import { Tile } from "./tile.js";

const id = document.body.dataset.workspace;
const grid = document.getElementById("grid");
const empty = document.getElementById("empty");
let tile = null;

function render() {
  const workspace = store.workspaces.get(id);
  grid.hidden = !workspace;
  empty.hidden = Boolean(workspace);
  if (!workspace) {
    tile?.dispose();
    tile = null;
    showMissing();
    return;
  }
  document.title = `${workspace.name} · TClone`;
  if (tile) {
    tile.update(workspace);
    return;
  }
  tile = new Tile(workspace, { solo: true });
  grid.append(tile.element);
  tile.focusDesktop();
}

function showMissing() {
  if (empty.firstChild) return;
  empty.append(h("h1", { textContent: `${id} is not here` }), h("p", { textContent: "It was discarded, or never was." }), h("a", { className: "button primary", href: "/", textContent: "All workspaces" }));
}

followKeyboard(() => (tile ? [tile] : []), () => {});
startPage(render);
