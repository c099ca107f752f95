// Who has control of a workspace, and how long it lives: a button and a sign for each in its tile.

import { handBack, keepAlive, setLifetime, takeControl, whoAmI } from "./api.js";
import { Dialog, field, submitButton } from "./dialog.js";
import { button, h, icon, setText } from "./dom.js";
import { span } from "./format.js";
import { idleSelect, lifetimeSelect, secondsOf } from "./lifetimes.js";
import { snippet } from "./snippets.js";
import { store } from "./store.js";
import { common, control as words } from "./strings.js";
import { toast } from "./toast.js";

// The end is near: it is said in words, and read out.
const SOON_SECONDS = 600;

const clocks = new Set();
setInterval(() => clocks.forEach((tick) => tick()), 1000);

/** Seconds until the workspace ends by its rules, or null: never. */
export function secondsLeft(life, now = Date.now() / 1000) {
  const deadlines = [life?.idle_at, life?.ends_at].filter((time) => typeof time === "number");
  return deadlines.length ? Math.max(0, Math.min(...deadlines) - now) : null;
}

/** The parts of one tile. `onChange()` is called when control has changed hands. */
export class Control {
  holder = h("span", { className: "chip holder", hidden: true });
  left = h("span", { className: "chip left", hidden: true });
  keep = button(words.keep, { kind: "quiet small", on: () => this.#try(keepAlive, words.keepFailed) });
  toggle = button(words.take, { iconName: "hand", kind: "quiet control", on: () => this.change() });
  clock = button(words.lifetime, { iconName: "clock", iconOnly: true, caption: words.lifetime, kind: "quiet", on: () => openLifetime(this.#workspace) });
  #workspace;
  #epoch;
  #tick = () => this.#showLeft();

  constructor(workspace, onChange) {
    this.#workspace = workspace;
    this.onChange = onChange;
    this.keep.hidden = true;
    clocks.add(this.#tick);
  }

  close() {
    clocks.delete(this.#tick);
  }

  get lease() {
    return store.leases.get(this.#workspace.id) ?? null;
  }

  update(workspace) {
    this.#workspace = workspace;
    const { lease } = this;
    // Control has changed hands, here or elsewhere: what is held down by this page is let go of.
    if (this.#epoch !== undefined && this.#epoch !== (lease?.epoch ?? null)) this.onChange();
    this.#epoch = lease?.epoch ?? null;
    const mine = lease !== null && lease.holder === whoAmI();
    this.holder.hidden = lease === null;
    this.holder.classList.toggle("mine", mine);
    setText(this.holder, lease === null ? "" : mine ? words.mine : words.others(lease.holder));
    this.holder.title = words.holderTitle;
    const label = lease === null ? words.take : mine ? words.handBack : words.takeOver;
    setText(this.toggle.lastChild, label);
    this.toggle.setAttribute("aria-label", label);
    this.toggle.title = words.takeTitle;
    this.toggle.hidden = !["ready", "forking"].includes(workspace.state);
    this.#showLeft();
  }

  /** Take control, hand it back, or take it over from somebody else after a question. */
  change() {
    const { lease } = this;
    if (lease === null) this.#try((id) => takeControl(id, false), words.takeFailed);
    else if (lease.holder === whoAmI()) this.#try(handBack, words.handBackFailed);
    else this.#askToTakeOver(lease);
  }

  keepAlive() {
    this.#try(keepAlive, words.keepFailed);
  }

  async #try(action, failed) {
    try {
      await action(this.#workspace.id);
    } catch (failure) {
      toast(failed, failure.message, { kind: "error" });
    }
  }

  #askToTakeOver(lease) {
    const dialog = new Dialog(words.takeOverTitle(lease.holder), { className: "narrow" });
    const confirm = submitButton(words.takeOver, "danger");
    const { element: same } = snippet(() => ({ method: "POST", path: `/api/v1/workspaces/${this.#workspace.id}/lease`, body: { force: true }, person: true }));
    dialog.step([h("p", { textContent: words.takeOverText(this.#workspace.name) })], [button(common.cancel, { on: () => dialog.close() }), confirm], [same]);
    dialog.onSubmit = async () => {
      try {
        await takeControl(this.#workspace.id, true);
        dialog.close();
      } catch (failure) {
        dialog.showError(failure);
      }
    };
    dialog.show();
  }

  #showLeft() {
    const seconds = secondsLeft(store.lives.get(this.#workspace.id));
    this.left.hidden = this.keep.hidden = seconds === null;
    if (seconds === null) return;
    setText(this.left, words.endsIn(span(seconds)));
    this.left.classList.toggle("warn", seconds < SOON_SECONDS);
    this.left.title = words.endsTitle;
  }
}

function openLifetime(workspace) {
  const life = store.lives.get(workspace.id) ?? {};
  const dialog = new Dialog(words.lifetimeTitle(workspace.name), { subtitle: words.lifetimeText, className: "narrow" });
  const idle = idleSelect(life.idle_seconds ?? null);
  const lifetime = lifetimeSelect(life.lifetime_seconds ?? null);
  const wanted = () => ({ idle_seconds: secondsOf(idle), lifetime_seconds: secondsOf(lifetime) });
  const same = snippet(() => ({ method: "PUT", path: `/api/v1/workspaces/${workspace.id}/lifetime`, body: wanted() }));
  const now = h("p", { className: "life-now" });
  const tick = () => {
    const seconds = secondsLeft(store.lives.get(workspace.id));
    setText(now, seconds === null ? words.livesOn : words.endsIn(span(seconds)));
  };
  clocks.add(tick);
  tick();
  dialog.onClose = () => clocks.delete(tick);
  dialog.form.addEventListener("input", same.refresh);
  const keep = button(words.keep, { on: async () => {
    try {
      await keepAlive(workspace.id);
    } catch (failure) {
      dialog.showError(failure);
    }
  } });
  dialog.step([h("div", { className: "life-line" }, icon("clock"), now, keep), field(words.idle, idle, words.idleHint), field(words.whole, lifetime, words.wholeHint)], [button(common.cancel, { on: () => dialog.close() }), submitButton(words.save)], [same.element]);
  dialog.onSubmit = async () => {
    try {
      await setLifetime(workspace.id, wanted());
      dialog.close();
    } catch (failure) {
      dialog.showError(failure);
    }
  };
  dialog.show();
}
