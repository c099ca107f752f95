// One workspace alone, as large as the window.

import { openApi } from "./api_dialog.js";
import { h } from "./dom.js";
import { openDiscard } from "./discard.js";
import { followKeyboard } from "./keyboard.js";
import { openLaunch } from "./launch.js";
import { Leader } from "./leader.js";
import { Panels } from "./panels.js";
import { startPage } from "./shell.js";
import { store } from "./store.js";
import { keys, solo as words } from "./strings.js";
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
  tile = new Tile(workspace, { solo: true, choose: () => tile.focusDesktop(), hear });
  grid.append(tile.element);
  tile.setLive(true);
  if (!location.hash) tile.focusDesktop();
}

function showMissing() {
  if (empty.firstChild) return;
  empty.append(h("h1", { textContent: words.missing(id) }), h("p", { textContent: words.missingText }), h("a", { className: "button primary", href: "/", textContent: words.all }));
}

const commands = keys.commands;
const here = () => tile !== null;
const leader = new Leader([
  { keys: ["f"], shown: "F", label: commands.fork, run: () => tile.openFork(), enabled: () => tile?.workspace.state === "ready" },
  { keys: ["l"], shown: "L", label: commands.launch, run: () => openLaunch() },
  { keys: ["d"], shown: "D", label: commands.discard, run: () => openDiscard(tile.workspace), enabled: here },
  { keys: ["t"], shown: "T", label: commands.control, run: () => tile.control.change(), enabled: () => tile !== null },
  { keys: ["k"], shown: "K", label: commands.keep, run: () => tile.control.keepAlive(), enabled: () => tile !== null },
  { keys: ["s"], shown: "S", label: commands.api, run: () => openApi(tile.workspace), enabled: here },
  { keys: ["h"], shown: "H", label: commands.home, run: () => location.assign("/") },
]);

function hear(from, type) {
  if (type === "leader" && document.activeElement === from.frame) leader.open(() => from.focusDesktop());
}

followKeyboard(() => (tile ? [tile] : []), () => {});
startPage(render);
