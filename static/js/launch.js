// Launch a workspace: choose, build the image when there is none yet, then watch it start.

import { build, discard, images, launch } from "./api.js";
import { buildLine } from "./builds.js";
import { Dialog, field, nameProblem, segmented, submitButton } from "./dialog.js";
import { button, h, prose } from "./dom.js";
import { Fault } from "./faults.js";
import { duration, size } from "./format.js";
import { Phases } from "./phases.js";
import { quotaLine } from "./quota.js";
import { snippet } from "./snippets.js";
import { store } from "./store.js";
import { common, launch as words } from "./strings.js";
import { toast } from "./toast.js";

const GIB = 1024 ** 3;
const MEMORY = [["", words.memoryDefault], [2 * GIB, "2 GiB"], [4 * GIB, "4 GiB"], [8 * GIB, "8 GiB"], [16 * GIB, "16 GiB"]];
const DISK = [["", words.diskDefault], [5 * GIB, "5 GiB"], [10 * GIB, "10 GiB"], [20 * GIB, "20 GiB"], [50 * GIB, "50 GiB"]];
const CPUS = [["", words.cpusDefault], ...[0.5, 1, 2, 4, 8].map((count) => [count, String(count)])];
// Refusals that another try would get as well, unless the form is changed.
const CORRECTABLE = ["bad_request", "conflict", "limit"];

/** Ports from "3000, 5173"; throws with what is wrong. */
export function parsePorts(text) {
  const parts = text.split(/[\s,]+/).filter(Boolean);
  for (const part of parts) {
    if (!/^\d{1,5}$/.test(part) || Number(part) < 1 || Number(part) > 65535) throw new Error(words.notAPort(part));
  }
  return [...new Set(parts.map(Number))];
}

class LaunchDialog {
  constructor() {
    this.dialog = new Dialog(words.title);
    this.choices = h("div", { className: "choices", attributes: { role: "radiogroup", "aria-label": words.image } });
    this.name = h("input", { type: "text", name: "name", autocomplete: "off", spellcheck: false, placeholder: words.chosenForYou, maxLength: 41 });
    this.ports = h("input", { type: "text", name: "ports", inputMode: "numeric", autocomplete: "off", placeholder: words.portsExample });
    this.memory = h("select", { name: "memory" }, ...MEMORY.map(([value, label]) => h("option", { value: String(value), textContent: label })));
    this.disk = h("select", { name: "disk" }, ...DISK.map(([value, label]) => h("option", { value: String(value), textContent: label })));
    this.cpus = h("select", { name: "cpus" }, ...CPUS.map(([value, label]) => h("option", { value: String(value), textContent: label })));
    this.network = segmented("network", words.network, Object.entries(words.networks), "open");
    this.network.append(h("p", { className: "hint", textContent: words.networkHint }));
    this.cancel = button(common.cancel, { on: () => this.dialog.close() });
    this.submit = submitButton(words.submit);
    this.dialog.onSubmit = () => this.act();
    this.onBuild = () => this.loadImages();
    store.addEventListener("build", this.onBuild);
    this.dialog.onClose = () => store.removeEventListener("build", this.onBuild);
    this.choices.addEventListener("change", () => this.showChoice());
    this.same = snippet(() => this.action());
    this.quota = quotaLine();
    this.dialog.form.addEventListener("input", () => this.same.refresh());
    this.form();
    this.dialog.show();
    this.loadImages();
  }

  /** The form, with what was wrong in it; `again`: it may be sent once more as it is. */
  form(failure = null, again = false) {
    const fields = h("div", { className: "field-row" }, field(words.ports, this.ports, words.portsHint), field(words.memory, this.memory));
    const disk = h("div", { className: "field-row" }, field(words.disk, this.disk, words.diskHint), field(words.cpus, this.cpus, words.cpusHint));
    this.dialog.step([this.choices, field(words.name, this.name), fields, disk, this.network, this.quota], [this.cancel, this.submit], [this.same.element]);
    this.submit.disabled = false;
    this.showChoice();
    if (failure) {
      this.dialog.showError(failure, { name: this.name, ports: this.ports, memory: this.memory, disk: this.disk, cpus: this.cpus });
      // What was wrong is in the form: it is corrected and sent. Only what failed at the other end is tried again.
      if (again) this.submit.textContent = common.retry;
    }
  }

  get chosen() {
    const value = this.choices.querySelector("input:checked")?.value;
    return this.images?.find((image) => image.name === value) ?? null;
  }

  async loadImages() {
    let listed;
    try {
      listed = await images();
    } catch (failure) {
      this.choices.replaceChildren(h("p", { className: "error" }, ...prose(failure.message)), button(common.retry, { iconName: "reload", on: () => this.loadImages() }));
      return;
    }
    const before = this.chosen?.name;
    this.images = listed;
    const preferred = listed.find((image) => image.name === before) ?? listed.find((image) => image.desktop) ?? listed[0];
    const focused = this.choices.contains(document.activeElement);
    this.choices.replaceChildren(...listed.map((image) => this.choice(image, image === preferred)));
    if (focused) this.choices.querySelector("input:checked")?.focus();
    if (!listed.length) this.choices.replaceChildren(h("p", {}, ...prose(words.noImage)));
    this.showChoice();
    this.same.refresh();
  }

  choice(image, checked) {
    const kind = image.built ? (image.desktop ? words.desktop : words.headless) : words.notBuilt;
    const line = [kind, image.built ? size(image.size) : null].filter(Boolean).join(" · ");
    const text = h("span", { className: "choice-text" }, h("strong", { textContent: image.name }), h("small", { textContent: line }), image.about ? h("small", { textContent: image.about }) : null);
    const label = h("label", { className: "choice" }, h("input", { type: "radio", name: "image", value: image.name, checked }), text);
    if (image.build) label.append(buildLine(image.name));
    return label;
  }

  showChoice() {
    const image = this.chosen;
    const building = Boolean(image?.build && !image.build.error);
    this.submit.disabled = !image || building;
    this.submit.textContent = building ? words.buildBusy : image && !image.built ? words.build : words.submit;
  }

  async act() {
    const image = this.chosen;
    if (!image || this.submit.disabled) return;
    this.dialog.hideError();
    if (image.built) {
      this.launch(image);
      return;
    }
    this.submit.disabled = true;
    try {
      await build(image.name);
    } catch (failure) {
      this.dialog.showError(failure);
    }
    this.loadImages();
  }

  /** What the form says. Throws with what is wrong in it. */
  wanted(image) {
    const name = this.name.value.trim();
    const problem = nameProblem(name);
    if (problem) throw new Fault(problem, this.name);
    const memory = this.memory.value ? { memory: Number(this.memory.value) } : {};
    const disk = this.disk.value ? { disk: Number(this.disk.value) } : {};
    const cpus = this.cpus.value ? { cpus: Number(this.cpus.value) } : {};
    const network = this.network.querySelector("input:checked").value;
    return { image: image.name, ...(name ? { name } : {}), ...memory, ...disk, ...cpus, ports: this.wantedPorts(), ...(network === "open" ? {} : { network }) };
  }

  wantedPorts() {
    try {
      return parsePorts(this.ports.value);
    } catch (problem) {
      throw new Fault(problem.message, this.ports);
    }
  }

  /** What the main button does, for the snippet. */
  action() {
    const image = this.chosen;
    if (image && !image.built) return { method: "POST", path: `/api/v1/images/${encodeURIComponent(image.name)}/build` };
    return { method: "POST", path: "/api/v1/workspaces", body: this.described() };
  }

  /** The same for the snippet, which is there before the form is complete. */
  described() {
    try {
      return this.wanted(this.chosen ?? { name: "webtop-xfce" });
    } catch {
      return { image: this.chosen?.name ?? "webtop-xfce" };
    }
  }

  async launch(image) {
    let wanted;
    try {
      wanted = this.wanted(image);
    } catch (problem) {
      this.form(problem);
      return;
    }
    this.submit.disabled = true;
    this.submit.textContent = words.busy;
    try {
      this.watch(await launch(wanted));
    } catch (failure) {
      this.form(failure, !CORRECTABLE.includes(failure.code));
    }
  }

  /** Follow a launch until the engine says that its picture is there. */
  watch(workspace) {
    const phases = new Phases();
    this.dialog.title.textContent = words.following(workspace.name);
    this.dialog.step([h("div", { className: "progress" }, phases.total, phases.element)], [button(common.hide, { on: () => this.dialog.close() })]);
    const stop = () => store.removeEventListener("change", look);
    const look = () => {
      const current = store.workspaces.get(workspace.id);
      const operation = store.operations.get(workspace.id);
      if (operation) phases.update(operation.phases);
      if (!current || current.state === "starting" || current.state === "created") return;
      stop();
      if (["failed", "stopped"].includes(current.state)) this.failed(current);
      else this.ready(current, performance.now() - phases.started);
    };
    store.addEventListener("change", look);
    look();
  }

  ready(workspace, elapsed) {
    const action = document.body.dataset.workspace ? { label: words.show, href: "/" } : null;
    toast(words.ready(workspace.name), words.startedIn(duration(elapsed)), { action });
    this.dialog.close();
  }

  failed(workspace) {
    this.dialog.title.textContent = words.failed(workspace.name);
    const again = button(common.retry, { iconName: "reload", kind: "primary", on: () => this.retry(workspace) });
    this.dialog.step([h("p", { textContent: words.failedText })], [button(common.close, { on: () => this.dialog.close() }), again]);
    this.dialog.showError(new Fault(workspace.error ?? words.ended));
  }

  async retry(workspace) {
    try {
      await discard(workspace.id);
    } catch (failure) {
      if (failure.status !== 404) {
        this.dialog.showError(failure);
        return;
      }
    }
    this.dialog.title.textContent = words.title;
    this.form();
    this.act();
  }
}

export const openLaunch = () => new LaunchDialog();
