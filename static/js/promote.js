// Files that differ, chosen to become another workspace's: what is chosen, and the dialog that tells what that does before it is done.

import { request } from "./api.js";
import { Dialog, submitButton } from "./dialog.js";
import { button, h, prose, setText } from "./dom.js";
import { one } from "./inside.js";
import { snippet } from "./snippets.js";
import { common } from "./strings.js";
import { promote as words } from "./strings_panels.js";

const MOST_SHOWN = 200;
// The portal takes so many in one request.
const MOST_CHOSEN = 1000;

/** What is chosen of a list of changes, and the line with the button. `onPromote(paths)`. */
export class Chosen {
  #paths = new Set();
  #boxes = new Map();
  #all = h("input", { type: "checkbox", id: "promote-all", on: { change: () => this.#chooseAll(this.#all.checked) } });
  #label = h("label", { htmlFor: "promote-all", textContent: words.all });
  #button;

  constructor(onPromote) {
    this.#button = button(words.open, { kind: "small", on: () => onPromote([...this.#paths]) });
    this.element = h("div", { className: "promote-line", hidden: true }, h("span", { className: "promote-all" }, this.#all, this.#label), this.#button);
  }

  /** Begin anew for a list of changes. `name`: of the workspace that files may go to; null: there is none. */
  reset(name) {
    this.#paths.clear();
    this.#boxes.clear();
    this.element.hidden = name === null;
    this.#say();
  }

  /** The box for one change of the list. */
  box({ encoded, path }) {
    const input = h("input", { type: "checkbox", aria: { label: words.choose(path) } });
    input.addEventListener("change", () => this.#choose(encoded, input.checked));
    this.#boxes.set(encoded, input);
    return input;
  }

  #choose(encoded, chosen) {
    if (chosen) this.#paths.add(encoded);
    else this.#paths.delete(encoded);
    this.#say();
  }

  #chooseAll(chosen) {
    for (const [encoded, input] of this.#boxes) {
      input.checked = chosen;
      if (chosen) this.#paths.add(encoded);
      else this.#paths.delete(encoded);
    }
    this.#say();
  }

  #say() {
    const count = this.#paths.size;
    this.#all.checked = count > 0 && count === this.#boxes.size;
    this.#all.indeterminate = count > 0 && count < this.#boxes.size;
    this.#button.disabled = count === 0 || count > MOST_CHOSEN;
    const label = count ? words.openCount(count) : words.open;
    setText(this.#button, label);
    this.#button.setAttribute("aria-label", label);
    setText(this.#label, count > MOST_CHOSEN ? words.tooMany(MOST_CHOSEN) : words.all);
  }
}

/** Ask, tell and do it. `into`: `{id, name}` of the workspace that the files go to; `onDone(text)` when they are there. */
export function openPromote(id, name, into, paths, onDone) {
  const dialog = new Dialog(words.title(into.name), { subtitle: words.from(name, id) });
  const cancel = button(common.cancel, { on: () => dialog.close() });
  const confirm = submitButton(words.submit, "primary");
  const ask = (body) => request("POST", `${one(id)}/promote`, body);
  const body = { paths, into: into.id };
  confirm.disabled = true;
  dialog.step([h("p", { textContent: words.looking, attributes: { role: "status" } })], [cancel, confirm]);
  dialog.show();
  cancel.focus();
  plan();

  async function plan() {
    try {
      tell((await ask({ ...body, dry_run: true })).paths);
    } catch (failure) {
      dialog.step([], [cancel]);
      dialog.showError(failure);
    }
  }

  function tell(steps) {
    const against = steps.filter(({ outcome }) => outcome === "conflict");
    const refused = steps.filter(({ outcome }) => outcome === "refused");
    // With what cannot be promoted there is nothing to agree to.
    const possible = steps.length > 0 && !refused.length;
    const force = h("input", { type: "checkbox", id: "promote-force" });
    const wanted = () => ({ ...body, ...(force.checked ? { force: true } : {}) });
    const same = snippet(() => ({ method: "POST", path: `${one(id)}/promote`, body: wanted() }));
    const able = () => {
      confirm.disabled = !possible || (against.length > 0 && !force.checked);
      same.refresh();
    };
    force.addEventListener("change", able);
    const parts = [h("p", { textContent: steps.length ? words.explain(into.name) : words.nothing(into.name) }), list(steps, into.name)];
    if (possible && against.length) {
      parts.push(h("p", { className: "promote-warning", textContent: words.conflict(against.length, into.name) }));
      parts.push(h("div", { className: "promote-all" }, force, h("label", { htmlFor: force.id, textContent: words.force(into.name) })));
    }
    if (refused.length) parts.push(h("p", { className: "promote-warning", textContent: words.refused(refused.length) }));
    if (possible) parts.push(h("p", { className: "hint", textContent: words.warning }));
    dialog.step(parts, possible ? [cancel, confirm] : [cancel], possible ? [same.element] : []);
    able();
    dialog.onSubmit = () => carryOut(wanted());
  }

  async function carryOut(wanted) {
    if (confirm.disabled) return;
    confirm.disabled = true;
    confirm.textContent = words.busy;
    dialog.hideError();
    try {
      const done = (await ask(wanted)).paths;
      const failed = done.filter(({ outcome }) => outcome === "failed");
      if (failed.length < done.length) onDone(words.done(done.length - failed.length, into.name));
      if (!failed.length) return dialog.close();
      dialog.step([h("p", { textContent: words.failed(failed.length) }), list(failed, into.name)], [button(common.close, { on: () => dialog.close() })]);
    } catch (failure) {
      dialog.showError(failure);
      confirm.disabled = false;
      confirm.textContent = common.retry;
    }
    return undefined;
  }
}

/** `name`: of the workspace that the files go to */
function list(steps, name) {
  const items = steps.slice(0, MOST_SHOWN).map(({ change, path, outcome, reason }) => {
    const what = outcome === "refused" ? outcome : change;
    const why = outcome === "conflict" ? [words.changedToo(name)] : ["planned", "done"].includes(outcome) ? [] : prose(reason ?? "");
    const parts = [h("span", { className: `promote-change ${what}`, textContent: words.changes[what] }), " ", h("span", { className: "change-path", textContent: path })];
    return h("li", {}, ...parts, why.length ? h("span", { className: "promote-reason" }, ...why) : null);
  });
  if (steps.length > MOST_SHOWN) items.push(h("li", { textContent: words.more(steps.length - MOST_SHOWN) }));
  return h("ul", { className: "promote-list", tabIndex: 0, aria: { label: words.listLabel } }, ...items);
}
