// Which desktop has the keyboard. A frame of another origin tells nothing, but the page knows which frame has its focus.
//
// A viewer takes the focus by itself when it has loaded. Nobody asked for that, and what is typed next would go into a desktop picked at
// random: the focus is only left to a frame that the pointer is on, that Tab was pressed for, or that the page itself chose.

const CHECK_EVERY = 200;
const TAB_COUNTS_FOR = 1000;

let tabbed = -Infinity;
window.addEventListener("keydown", (event) => {
  if (event.key === "Tab") tabbed = performance.now();
}, true);

const wanted = (tile) => tile.element.matches(":hover") || tile.chosen || performance.now() - tabbed < TAB_COUNTS_FOR;

/** Mark the tile whose frame has the focus; `changed(id or null)` when it becomes another. */
export function followKeyboard(tiles, changed) {
  let current = null;
  const check = () => {
    let holder = null;
    for (const tile of tiles()) {
      let here = document.hasFocus() && tile.frame !== null && document.activeElement === tile.frame;
      if (here && tile.id !== current && !wanted(tile)) {
        tile.frame.blur();
        window.focus();
        here = false;
      }
      if (!here) tile.chosen = false;
      tile.showKeyboard(here);
      if (here) holder = tile.id;
    }
    if (holder !== current) {
      current = holder;
      changed(holder);
    }
  };
  // Going from one frame to another causes no event here, so it is looked up.
  setInterval(check, CHECK_EVERY);
  for (const type of ["focus", "blur"]) window.addEventListener(type, () => setTimeout(check));
}
