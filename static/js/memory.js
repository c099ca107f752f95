// Memory of workspaces for the lineage: asked for one workspace after the other while the page is visible, for each of them costs the
// kernel a walk through its pages.

import { stats } from "./inside.js";

const EVERY = 20_000;
const STEP = 1500;

export class Memory {
  #figures = new Map();
  #asked = new Map();
  #busy = false;

  /** `running()`: ids of the workspaces to ask for; `changed(id)` is called when there are new figures of one. */
  constructor(running, changed) {
    this.running = running;
    this.changed = changed;
    setInterval(() => this.#step(), STEP);
  }

  /** `{unique, shared}` in bytes; null when it is not known. */
  of(id) {
    return this.#figures.get(id) ?? null;
  }

  async #step() {
    if (this.#busy || document.visibilityState !== "visible") return;
    const ids = this.running();
    for (const id of [...this.#asked.keys()].filter((known) => !ids.includes(known))) {
      this.#asked.delete(id);
      this.#figures.delete(id);
    }
    const now = performance.now();
    const due = ids.find((id) => now - (this.#asked.get(id) ?? -EVERY) >= EVERY);
    if (due === undefined) return;
    this.#busy = true;
    this.#asked.set(due, now);
    try {
      const { unique_bytes: unique, shared_bytes: shared } = await stats(due);
      this.#figures.set(due, { unique, shared });
      this.changed(due);
    } catch {
      this.#figures.delete(due); // figures are no reason for a message
    } finally {
      this.#busy = false;
    }
  }
}
