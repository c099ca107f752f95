// Still pictures of desktops that do not stream: at most one a second for each, four asked for at once, none while nobody can see them.

import { ApiError, picture } from "./api.js";

const EVERY = 1000;
// After a refusal (it is being forked, or starting) or a failure.
const EVERY_AFTER_FAILURE = 2500;
const AT_ONCE = 4;
// A picture that another watcher caused this long ago will do.
const FRESH_MS = 700;
const NARROWEST = 160;
const WIDEST = 1280;

const views = new Map();
let under_way = 0;
let timer = null;

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    for (const [view, state] of views) if (view.canvas === entry.target) state.visible = entry.isIntersecting;
  }
  tick();
});

/** Keep the picture in `view.canvas` up to date. `view`: `{id, canvas, onPicture()}` */
export function watch(view) {
  if (views.has(view)) return;
  views.set(view, { due: 0, tag: null, visible: false, busy: false });
  seen.observe(view.canvas);
  timer ??= setInterval(tick, EVERY / 8);
}

export function unwatch(view) {
  views.delete(view);
  seen.unobserve(view.canvas);
  if (views.size) return;
  clearInterval(timer);
  timer = null;
}

/** The width to ask for: that of its place on this screen, in steps, so that layouts share pictures. */
function widthOf(canvas) {
  const pixels = (canvas.parentElement?.clientWidth ?? NARROWEST) * window.devicePixelRatio;
  return Math.min(WIDEST, Math.max(NARROWEST, Math.ceil(pixels / NARROWEST) * NARROWEST));
}

function tick() {
  if (document.visibilityState !== "visible") return;
  const now = performance.now();
  const due = [...views].filter(([, state]) => state.visible && !state.busy && state.due <= now).sort(([, a], [, b]) => a.due - b.due);
  for (const [view, state] of due) {
    if (under_way >= AT_ONCE) return;
    refresh(view, state);
  }
}

async function refresh(view, state) {
  under_way += 1;
  state.busy = true;
  state.due = performance.now() + EVERY;
  try {
    const width = widthOf(view.canvas);
    const answer = await picture(view.id, { width, freshMs: FRESH_MS, tag: state.width === width ? state.tag : null });
    if (answer !== null && views.has(view)) {
      draw(view.canvas, await createImageBitmap(answer.blob));
      state.tag = answer.tag;
      state.width = width;
    }
    if (views.has(view)) view.onPicture();
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    state.due = performance.now() + EVERY_AFTER_FAILURE;
  } finally {
    under_way -= 1;
    state.busy = false;
  }
}

function draw(canvas, bitmap) {
  // A canvas that is given its size goes blank, so only when that is another.
  if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) Object.assign(canvas, { width: bitmap.width, height: bitmap.height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  bitmap.close();
}
