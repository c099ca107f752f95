// Launch a workspace: choose, build the image when there is none yet, then watch it start.

import { build, discard, images, launch } from "./api.js";
import { Dialog, field, nameProblem, submitButton } from "./dialog.js";
import { button, h, prose } from "./dom.js";
import { duration, size } from "./format.js";
import { Phases } from "./phases.js";
import { store } from "./store.js";
import { toast } from "./toast.js";

const GIB = 1024 ** 3;
const MEMORY = [["", "Default (4 GiB)"], [2 * GIB, "2 GiB"], [4 * GIB, "4 GiB"], [8 * GIB, "8 GiB"], [16 * GIB, "16 GiB"]];
const DEFAULT_PORTS = "3000";

/** Ports from "3000, 5173"; throws with what is wrong. */
export function parsePorts(text) {
  const parts = text.split(/[\s,]+/).filter(Boolean);
  for (const part of parts) {
    if (!/^\d{1,5}$/.test(part) || Number(part) < 1 || Number(part) > 65535) throw new Error(`“${part}” is not a port: numbers from 1 to 65535, separated by commas.`);
  }
  return [...new Set(parts.map(Number))];
}

class LaunchDialog {
  constructor() {
    this.dialog = new Dialog("Launch a workspace");
    this.choices = h("div", { className: "choices", attributes: { role: "radiogroup", "aria-label": "Image" } });
    this.name = h("input", { type: "text", name: "name", autocomplete: "off", spellcheck: false, placeholder: "chosen for you", maxLength: 41 });
    this.ports = h("input", { type: "text", name: "ports", inputMode: "numeric", autocomplete: "off", value: DEFAULT_PORTS });
    this.memory = h("select", { name: "memory" }, ...MEMORY.map(([value, label]) => h("option", { value: String(value), textContent: label })));
    this.cancel = button("Cancel", { on: () => this.dialog.close() });
    this.submit = submitButton("Launch");
    this.dialog.onSubmit = () => this.act();
    this.onBuild = () => this.loadImages();
    store.addEventListener("build", this.onBuild);
    this.dialog.onClose = () => store.removeEventListener("build", this.onBuild);
    this.choices.addEventListener("change", () => this.showChoice());
    this.form();
    this.dialog.show();
    this.loadImages();
  }

  form(error = "") {
    const fields = h("div", { className: "field-row" }, field("Ports to publish", this.ports, "Each gets a port of the host, open to your network without a login."), field("Memory limit", this.memory));
    this.dialog.step([this.choices, field("Name (optional)", this.name), fields], [this.cancel, this.submit]);
    this.submit.disabled = false;
    this.showChoice();
    if (error) {
      this.dialog.showError(error);
      this.submit.textContent = "Retry";
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
      this.choices.replaceChildren(h("p", { className: "error" }, ...prose(failure.message)), button("Retry", { iconName: "reload", on: () => this.loadImages() }));
      return;
    }
    const before = this.chosen?.name;
    this.images = listed;
    const preferred = listed.find((image) => image.name === before) ?? listed.find((image) => image.desktop) ?? listed[0];
    const focused = this.choices.contains(document.activeElement);
    this.choices.replaceChildren(...listed.map((image) => this.choice(image, image === preferred)));
    if (focused) this.choices.querySelector("input:checked")?.focus();
    if (!listed.length) this.choices.replaceChildren(h("p", {}, ...prose("There is no image yet. `tclone image build webtop-xfce` makes one.")));
    this.showChoice();
  }

  choice(image, checked) {
    const kind = image.built ? (image.desktop ? "Desktop" : "Headless") : "Not built yet";
    const line = [kind, image.built ? size(image.size) : null].filter(Boolean).join(" · ");
    const text = h("span", { className: "choice-text" }, h("strong", { textContent: image.name }), h("small", { textContent: line }));
    const label = h("label", { className: "choice" }, h("input", { type: "radio", name: "image", value: image.name, checked }), text);
    if (image.build) label.append(buildLine(image.build));
    return label;
  }

  showChoice() {
    const image = this.chosen;
    const building = Boolean(image?.build && !image.build.error);
    this.submit.disabled = !image || building;
    this.submit.textContent = building ? "Building…" : image && !image.built ? "Build image" : "Launch";
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
      this.dialog.showError(failure.message);
    }
    this.loadImages();
  }

  async launch(image) {
    const name = this.name.value.trim();
    const wanted = { image: image.name, ...(name ? { name } : {}), ...(this.memory.value ? { memory: Number(this.memory.value) } : {}) };
    try {
      const problem = nameProblem(name);
      if (problem) throw new Error(problem);
      wanted.ports = parsePorts(this.ports.value);
      this.submit.disabled = true;
      this.submit.textContent = "Launching…";
      this.watch(await launch(wanted));
    } catch (failure) {
      this.form(failure.message);
    }
  }

  /** Follow a launch until the engine says that its picture is there. */
  watch(workspace) {
    const phases = new Phases();
    this.dialog.title.textContent = `Launching ${workspace.name}`;
    this.dialog.step([h("div", { className: "progress" }, phases.total, phases.element)], [button("Hide", { on: () => this.dialog.close() })]);
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
    const action = document.body.dataset.workspace ? { label: "Show", href: "/" } : null;
    toast(`${workspace.name} is ready`, `Started in ${duration(elapsed)}`, { action });
    this.dialog.close();
  }

  failed(workspace) {
    this.dialog.title.textContent = `${workspace.name} did not start`;
    const again = button("Retry", { iconName: "reload", kind: "primary", on: () => this.retry(workspace) });
    this.dialog.step([h("p", { textContent: "What was made of it is kept, so that its log can be read." })], [button("Close", { on: () => this.dialog.close() }), again]);
    this.dialog.showError(workspace.error ?? "Its first process ended.");
  }

  async retry(workspace) {
    try {
      await discard(workspace.id);
    } catch (failure) {
      if (failure.status !== 404) {
        this.dialog.showError(failure.message);
        return;
      }
    }
    this.dialog.title.textContent = "Launch a workspace";
    this.form();
    this.act();
  }
}

function buildLine(state) {
  if (state.error) return h("p", { className: "choice-build error" }, h("span", {}, ...prose(`The build failed: ${state.error}`)));
  const detail = [state.phase, state.detail].filter(Boolean).join(" · ");
  const elapsed = Number.isFinite(state.elapsed_ms) ? duration(state.elapsed_ms) : "";
  return h("div", { className: "choice-build", attributes: { role: "status" } }, h("span", { className: "spinner", aria: { hidden: "true" } }), h("span", { textContent: `Building: ${detail}` }), h("span", { className: "phase-time", textContent: elapsed }));
}

export const openLaunch = () => new LaunchDialog();
