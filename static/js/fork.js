// Fork a workspace: how many copies, what they are called and for, what they may reach; then the phases as they happen.

import { fork } from "./api.js";
import { Dialog, field, nameProblem, segmented, submitButton } from "./dialog.js";
import { button, h, prose, setName, setText } from "./dom.js";
import { Fault } from "./faults.js";
import { duration } from "./format.js";
import { Phases } from "./phases.js";
import { quotaLine } from "./quota.js";
import { snippet } from "./snippets.js";
import { store } from "./store.js";
import { common, fork as words } from "./strings.js";
import { toast } from "./toast.js";

const MOST_COPIES = 8;
const LONGEST_LABEL = 80;
// Figures are read, and compared with what is on the screen, before they go.
const FIGURES_MS = 30_000;
const FIGURES = ["pause", "usable", "first_frame"];
// Refusals that another try would get as well, unless the form is changed; so it is with one that is about a field of it.
const CORRECTABLE = ["bad_request", "limit"];

/** `source paused 284 ms · usable after 348 ms`, of what the engine measured; a figure and its unit stay in one line */
function milestones(result) {
  return FIGURES.filter((name) => Number.isFinite(result.ms[name])).map((name) => `${words.figures[name]} ${duration(result.ms[name]).replace(" ", "\u00a0")}`).join(" · ");
}

class ForkDialog {
  constructor(workspace, back) {
    this.workspace = workspace;
    this.back = back;
    this.dialog = new Dialog(words.title(workspace.name), { subtitle: words.subtitle });
    const copies = Array.from({ length: MOST_COPIES }, (_, index) => [index + 1, String(index + 1)]);
    this.copies = segmented("copies", words.copies, copies, 1);
    this.network = segmented("network", words.network, Object.entries(words.networks), workspace.network === "none" ? "none" : "open");
    this.name = h("input", { type: "text", name: "name", autocomplete: "off", spellcheck: false, placeholder: `${workspace.name}-clone`, maxLength: 41 });
    this.labels = copies.map(() => h("input", { type: "text", autocomplete: "off", placeholder: words.labelPlaceholder, maxLength: LONGEST_LABEL }));
    this.labelsTitle = h("legend");
    this.labelRows = h("div", { className: "label-rows" });
    this.submit = submitButton("");
    this.cancel = button(common.cancel, { on: () => this.dialog.close() });
    this.quota = quotaLine();
    this.same = snippet(() => ({ method: "POST", path: `/api/v1/workspaces/${workspace.id}/fork`, body: this.wanted() }));
    this.dialog.onSubmit = () => this.start();
    this.dialog.form.addEventListener("input", () => this.refresh());
    this.form();
    this.dialog.show();
    this.copies.querySelector("input:checked").focus();
  }

  get count() {
    return Number(this.copies.querySelector("input:checked").value);
  }

  /** What the copies will be called. */
  get names() {
    const base = this.name.value.trim() || `${this.workspace.name}-clone`;
    return this.count === 1 ? [base] : Array.from({ length: this.count }, (_, index) => `${base}-${index}`);
  }

  wanted() {
    const name = this.name.value.trim();
    const labels = this.labels.slice(0, this.count).map((input) => input.value.trim());
    const network = this.network.querySelector("input:checked").value;
    return {
      copies: this.count,
      ...(name ? { name } : {}),
      ...(labels.some(Boolean) ? { labels } : {}),
      ...(network === this.workspace.network ? {} : { network }),
    };
  }

  /** The form, with what was wrong in it; `again`: it may be sent once more as it is. */
  form(failure = null, again = false) {
    const note = h("p", { className: "hint", textContent: words.note });
    const labels = h("fieldset", { className: "labels" }, this.labelsTitle, this.labelRows);
    this.dialog.step([this.copies, field(words.name, this.name), labels, this.network, note, this.quota], [this.cancel, this.submit], [this.same.element]);
    this.again = again;
    this.refresh();
    if (failure) this.dialog.showError(failure, { name: this.name });
  }

  refresh() {
    const { names } = this;
    this.submit.textContent = this.again ? common.retry : words.submit(this.count);
    setText(this.labelsTitle, words.labels(this.count));
    if (this.labelRows.childElementCount !== names.length) {
      this.labelRows.replaceChildren(...names.map((_, index) => h("div", { className: "label-row" }, h("span", { className: "mono" }), this.labels[index])));
    }
    names.forEach((name, index) => {
      setName(this.labelRows.children[index].firstChild, name);
      this.labels[index].setAttribute("aria-label", words.labelOf(name));
    });
    this.same.refresh();
  }

  async start() {
    const problem = nameProblem(this.name.value.trim());
    if (problem) {
      this.dialog.showError(new Fault(problem, this.name));
      return;
    }
    const options = this.wanted();
    this.progress();
    try {
      this.finish(await fork(this.workspace.id, options));
    } catch (failure) {
      this.stopWatching();
      this.form(failure, !failure.field && !CORRECTABLE.includes(failure.code));
      if (!this.dialog.isOpen) toast(words.failed(this.workspace.name), failure.message, { kind: "error" });
    }
  }

  progress() {
    const phases = new Phases();
    const hide = button(common.hide, { on: () => this.dialog.close() });
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
    const made = result.branches.filter((branch) => !branch.error);
    if (made.length) toast(words.done(made.length, this.workspace.name), this.told(made, result), { action: this.nextStep(made), ms: FIGURES_MS });
    if (!failed.length) {
      // Whoever has waited goes on where the fork was asked for; whoever has hidden the dialog is elsewhere by now.
      const waited = this.dialog.isOpen;
      this.dialog.close();
      if (waited) this.back();
      return;
    }
    const items = failed.map((branch) => h("li", {}, h("strong", { textContent: branch.name ?? branch.id ?? common.fallbackName }), h("p", {}, ...prose(branch.error))));
    this.dialog.step([h("p", { textContent: words.someFailed(failed.length, result.branches.length) }), h("ul", { className: "failures" }, ...items)], [button(common.close, { on: () => this.dialog.close() })]);
    if (!this.dialog.isOpen) toast(words.failedToast(failed.length), failed[0].error, { kind: "error" });
  }

  /** What came of it, in two lines: the copies' names, the times. */
  told(made, result) {
    return [words.named(made.map(({ name }) => name).join(", ")), milestones(result)].filter(Boolean).join("\n");
  }

  /** A copy of a desktop is looked at beside its source; the page that does so offers the other copies, too. */
  nextStep(made) {
    if (this.workspace.desktop) return { label: words.compare, href: `/compare/${this.workspace.id}/${made[0].id}` };
    return document.body.dataset.workspace ? { label: words.sideBySide, href: "/" } : null;
  }
}

/** `back()` gives the keyboard back to whom it belongs when the fork is done. */
export const openFork = (workspace, back) => new ForkDialog(workspace, back);
