// The phases of something under way, each with how long it took; the one that goes on counts.

import { h, icon, setText } from "./dom.js";
import { duration } from "./format.js";
import { phases as words } from "./strings.js";

const clocks = new Set();

setInterval(() => {
  for (const clock of clocks) {
    if (clock.element.isConnected) clock.tick();
    else clocks.delete(clock);
  }
}, 100);

/** A phase as people read it. */
export const phaseName = (name) => words.names[name] ?? (name ? name.charAt(0).toUpperCase() + name.slice(1) : words.working);

export class Phases {
  element = h("ol", { className: "phases", aria: { live: "polite", label: words.label } });
  total = h("p", { className: "elapsed", aria: { hidden: "true" } });
  #shown = 0;
  #first = null;
  #last = null;
  // What is shown of how long the current phase takes, and when it began.
  #time = null;
  #began = 0;

  constructor() {
    this.started = performance.now();
    clocks.add({ element: this.total, tick: () => this.#tick(performance.now()) });
  }

  /** `phases`: `[{phase, detail, elapsed_ms, received}]`, growing at its end. */
  update(phases) {
    if (phases.length < this.#shown || phases[0] !== this.#first) {
      this.element.replaceChildren();
      this.#shown = 0;
      this.#last = this.#time = null;
      this.#first = phases[0];
      if (phases[0]) this.started = phases[0].received - (phases[0].elapsed_ms ?? 0);
    }
    for (const phase of phases.slice(this.#shown)) {
      const began = this.started + (phase.elapsed_ms ?? performance.now() - this.started);
      this.#last?.classList.remove("current");
      this.#count(began);
      this.#began = began;
      // Who hears the page is told of the phases, not of each tenth of a second.
      this.#time = h("span", { className: "phase-time", aria: { live: "off" } });
      const detail = phase.detail ? h("span", { className: "phase-detail", textContent: phase.detail }) : null;
      this.#last = h("li", { className: "current" }, icon("check"), h("span", { className: "phase-name" }, h("span", { textContent: phaseName(phase.phase) }), detail), this.#time);
      this.element.append(this.#last);
    }
    this.#shown = phases.length;
  }

  #tick(now) {
    setText(this.total, duration(Math.max(0, now - this.started)));
    this.#count(now);
  }

  /** How long the current phase has taken at `until`. */
  #count(until) {
    if (this.#time) setText(this.#time, duration(Math.max(0, until - this.#began)));
  }
}
