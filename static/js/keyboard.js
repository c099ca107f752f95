// Which desktop has the keyboard. A frame of another origin tells nothing, but the page knows which frame has its focus.

const CHECK_EVERY = 200;

/** Mark the tile whose frame has the focus; `changed(id or null)` when it becomes another. */
export function followKeyboard(tiles, changed) {
  let current = null;
  const check = () => {
    let holder = null;
    for (const tile of tiles()) {
      const here = document.hasFocus() && tile.frame !== null && document.activeElement === tile.frame;
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
