// In which order tiles stand: that of the lineage, until somebody moves one. Kept in this browser.

const ORDER_KEY = "tclone-order";

let own = read();

function read() {
  try {
    const kept = JSON.parse(localStorage.getItem(ORDER_KEY));
    return Array.isArray(kept) ? kept.filter((id) => typeof id === "string") : [];
  } catch {
    return []; // not ours: the lineage's order will do
  }
}

/** `[{workspace, depth}]` of the lineage, in the order of the tiles. What is new stands behind its neighbour in the lineage. */
export function arranged(ordered) {
  const known = new Map(ordered.map((entry) => [entry.workspace.id, entry]));
  const ids = own.filter((id) => known.has(id));
  ordered.forEach(({ workspace: { id } }, index) => {
    if (!ids.includes(id)) ids.splice(index ? ids.indexOf(ordered[index - 1].workspace.id) + 1 : 0, 0, id);
  });
  return ids.map((id) => known.get(id));
}

/** Have two tiles change places. */
export function swap(ordered, one, other) {
  const ids = arranged(ordered).map(({ workspace }) => workspace.id);
  const [here, there] = [ids.indexOf(one), ids.indexOf(other)];
  if (here < 0 || there < 0) return;
  [ids[here], ids[there]] = [other, one];
  own = ids;
  localStorage.setItem(ORDER_KEY, JSON.stringify(own));
}
