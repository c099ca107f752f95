// How far the builds of images are, whoever began them: the phase, how much of it is done, the time.

import { h, prose, setText } from "./dom.js";
import { duration } from "./format.js";
import { phaseName } from "./phases.js";
import { store } from "./store.js";
import { launch as words } from "./strings.js";

const shown = new Map();

setInterval(() => {
  for (const [element, tick] of shown) {
    if (element.isConnected) tick();
    else shown.delete(element);
  }
}, 500);

/** One build in a line, kept up to date while it is in the page. */
export function buildLine(image) {
  const failure = h("p", { className: "error", hidden: true });
  const spinner = h("span", { className: "spinner", aria: { hidden: "true" } });
  const text = h("span", { className: "build-text", attributes: { role: "status" } });
  const time = h("span", { className: "phase-time" });
  const element = h("div", { className: "choice-build" }, spinner, text, time, failure);
  const tick = () => {
    const state = store.builds.get(image);
    const failed = Boolean(state?.error);
    for (const part of [spinner, text, time]) part.hidden = failed || !state;
    failure.hidden = !failed;
    if (failed) {
      if (!failure.firstChild) failure.replaceChildren(...prose(words.buildFailed(state.error)));
    } else if (state) {
      setText(text, [phaseName(state.phase), state.detail].filter(Boolean).join(" · "));
      setText(time, duration(performance.now() - state.began));
    }
  };
  shown.set(element, tick);
  tick();
  return element;
}

/** A build with its title, for a page that has nothing else to show. */
export const buildPart = (image) =>
  h("section", { className: "build", aria: { label: words.building(image) } }, h("h3", { textContent: words.building(image) }), buildLine(image), h("p", { className: "hint", textContent: words.buildingLong }));
