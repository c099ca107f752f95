// Which desktop has the keyboard. A frame of another origin tells nothing, but the page knows which frame has its focus.
//
// A viewer takes the focus by itself when it has loaded. Nobody asked for that, and what is typed next would go into a desktop picked at
// random: the focus is only left to a frame that the pointer is on, that Tab was pressed for, or that the page itself chose. From any other it
// goes back to where it was.

const CHECK_EVERY = 200;
const TAB_COUNTS_FOR = 1000;

let tabbed = -Infinity;
window.addEventListener("keydown", (event) => {
  if (event.key === "Tab") tabbed = performance.now();
}, true);

// What of this page, no frame of it, had the focus last.
let held = null;
document.addEventListener("focusin", ({ target }) => {
  if (target.tagName !== "IFRAME") held = target;
});
// A click beside everything takes the focus away from it, on purpose.
document.addEventListener("focusout", () => setTimeout(() => {
  if (document.hasFocus() && document.activeElement === document.body) held = null;
}));

const wanted = (tile) => tile.element.matches(":hover") || tile.chosen || performance.now() - tabbed < TAB_COUNTS_FOR;

function takeBack(frame) {
  frame.blur();
  window.focus();
  if (held?.isConnected) held.focus({ preventScroll: true, focusVisible: false });
}

/** Mark the tile whose frame has the focus; `changed(id or null)` when it becomes another. */
export function followKeyboard(tiles, changed) {
  let current = null;
  const check = () => {
    let holder = null;
    for (const tile of tiles()) {
      let here = document.hasFocus() && tile.frame !== null && document.activeElement === tile.frame;
      if (here && tile.id !== current && !wanted(tile)) {
        takeBack(tile.frame);
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
