// A tile is dragged by its head onto another one, and the two change places. By keys: the shortcuts `[` and `]`.

const KIND = "application/x-tclone-tile";

/** `swap(one, other)` is called with the ids of two tiles. */
export function draggable(tile, swap) {
  const { header, element } = tile;
  const carries = (event) => event.dataTransfer.types.includes(KIND);
  header.draggable = true;
  header.addEventListener("dragstart", (event) => {
    // A link is dragged as what it is.
    if (event.target !== header) return;
    event.dataTransfer.setData(KIND, tile.id);
    event.dataTransfer.effectAllowed = "move";
    // Frames would take what happens over them.
    document.body.classList.add("dragging-tile");
  });
  header.addEventListener("dragend", () => document.body.classList.remove("dragging-tile"));
  element.addEventListener("dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    element.classList.add("drop-here");
  });
  element.addEventListener("dragleave", (event) => element.contains(event.relatedTarget) || element.classList.remove("drop-here"));
  element.addEventListener("drop", (event) => {
    element.classList.remove("drop-here");
    if (!carries(event)) return;
    event.preventDefault();
    const other = event.dataTransfer.getData(KIND);
    if (other !== tile.id) swap(other, tile.id);
  });
}
