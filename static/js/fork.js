// Fork a workspace: how many copies, then the phases as they happen.

import { fork } from "./api.js";
import { Dialog, field, nameProblem, segmented, submitButton } from "./dialog.js";
import { button, h, prose } from "./dom.js";
import { duration, plural } from "./format.js";
import { Phases } from "./phases.js";
import { store } from "./store.js";
import { toast } from "./toast.js";

const MOST_COPIES = 8;
const FIGURES = [["pause", "source paused"], ["usable", "usable after"], ["first_frame", "first picture after"]];

/** `source paused 284 ms · usable after 348 ms`, of what the engine measured */
function milestones(result) {
  return FIGURES.filter(([name]) => Number.isFinite(result.ms[name])).map(([name, label]) => `${label} ${duration(result.ms[name])}`).join(" · ");
}

class ForkDialog {
  constructor(workspace) {
    this.workspace = workspace;
    this.dialog = new Dialog(`Fork ${workspace.name}`, { subtitle: "Every copy goes on from this very moment." });
    const copies = Array.from({ length: MOST_COPIES }, (_, index) => [index + 1, String(index + 1)]);
    this.copies = segmented("copies", "Copies", copies, 1);
    this.name = h("input", { type: "text", name: "name", autocomplete: "off", spellcheck: false, placeholder: `${workspace.name}-clone`, maxLength: 41 });
    this.preview = h("p", { className: "hint mono" });
    this.cancel = button("Cancel", { on: () => this.dialog.close() });
    this.dialog.onSubmit = () => this.start();
    for (const element of [this.copies, this.name]) element.addEventListener("input", () => this.showPreview());
    this.form();
    this.dialog.show();
    this.copies.querySelector("input:checked").focus();
  }

  get count() {
    return Number(this.copies.querySelector("input:checked").value);
  }

  form(error = "") {
    const note = h("p", { className: "hint", textContent: "Everything that runs is copied. TCP connections out of the workspace are closed in the copies; programs there see that at once." });
    this.dialog.step([this.copies, field("Name (optional)", this.name), this.preview, note], [this.cancel, (this.submit = submitButton(error ? "Retry" : "Fork"))]);
    this.showPreview();
    if (error) this.dialog.showError(error);
  }

  showPreview() {
    const base = this.name.value.trim() || `${this.workspace.name}-clone`;
    const names = this.count === 1 ? base : this.count === 2 ? `${base}-0, ${base}-1` : `${base}-0 … ${base}-${this.count - 1}`;
    this.preview.textContent = names;
    this.submit.textContent = this.submit.textContent === "Retry" ? "Retry" : this.count === 1 ? "Fork" : `Fork ${this.count} copies`;
  }

  async start() {
    const name = this.name.value.trim();
    const problem = nameProblem(name);
    if (problem) {
      this.dialog.showError(problem);
      this.name.focus();
      return;
    }
    const options = { copies: this.count, ...(name ? { name } : {}) };
    this.progress();
    try {
      this.finish(await fork(this.workspace.id, options));
    } catch (failure) {
      this.stopWatching();
      this.form(failure.message);
      if (!this.dialog.isOpen) toast(`${this.workspace.name} was not forked`, failure.message, { kind: "error" });
    }
  }

  progress() {
    const phases = new Phases();
    const hide = button("Hide", { on: () => this.dialog.close() });
    this.dialog.step([h("div", { className: "progress" }, phases.total, phases.element)], [hide]);
    this.watch = () => {
      const operation = store.operations.get(this.workspace.id);
      if (operation?.operation === "fork") phases.update(operation.phases);
    };
    store.addEventListener("change", this.watch);
  }

  stopWatching() {
    store.removeEventListener("change", this.watch);
  }

  finish(result) {
    this.stopWatching();
    const failed = result.branches.filter((branch) => branch.error);
    const made = result.branches.length - failed.length;
    const action = document.body.dataset.workspace ? { label: "Side by side", href: "/" } : null;
    if (made) toast(`${plural(made, "copy")} of ${this.workspace.name}`, milestones(result), { action });
    if (!failed.length) {
      this.dialog.close();
      return;
    }
    const items = failed.map((branch) => h("li", {}, h("strong", { textContent: branch.name ?? branch.id ?? "copy" }), h("p", {}, ...prose(branch.error))));
    this.dialog.step([h("p", { textContent: `${failed.length} of ${result.branches.length} copies failed:` }), h("ul", { className: "failures" }, ...items)], [button("Close", { on: () => this.dialog.close() })]);
    if (!this.dialog.isOpen) toast(`${plural(failed.length, "copy")} failed`, failed[0].error, { kind: "error" });
  }
}

export const openFork = (workspace) => new ForkDialog(workspace);
