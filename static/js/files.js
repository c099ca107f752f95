// The files of a workspace: walk through directories, send files in by button or drop, save, compare and remove them.

import { Dialog, field, submitButton } from "./dialog.js";
import { button, h, icon, setName } from "./dom.js";
import { Fault } from "./faults.js";
import { size } from "./format.js";
import { decoded, download, encodeName, joined, list, makeDirectory, one, parentOf, remove, upload } from "./inside.js";
import { Note, panelHead } from "./panel.js";
import { snippet } from "./snippets.js";
import { common } from "./strings.js";
import { files as words } from "./strings_panels.js";

const AT_ONCE = 3;

export class FilesPanel {
  #path = null;
  #entries = [];
  #runs = false;
  #isBranch = false;
  #loading = 0;
  #queue = [];
  #sending = 0;
  #crumbs = h("nav", { className: "crumbs", aria: { label: words.place } });
  #note = new Note();
  #body = h("tbody", {});
  #uploads = h("ul", { className: "uploads", aria: { label: words.uploads } });
  #input = h("input", { type: "file", multiple: true, hidden: true, on: { change: () => this.#take(this.#input.files) } });

  #same;

  constructor({ id, show }) {
    this.id = id;
    this.#same = snippet(() => ({ method: "GET", path: `${one(id)}/files?path=${this.#path ?? "/"}` }));
    this.show = show;
    const buttons = [
      button(words.upload, { iconName: "upload", kind: "primary", on: () => this.#input.click() }),
      button(words.newDirectory, { iconName: "folder", iconOnly: true, caption: words.newDirectory, kind: "quiet", on: () => this.#askDirectory() }),
      button(words.refresh, { iconName: "reload", iconOnly: true, caption: words.refresh, kind: "quiet", on: () => this.#open(this.#path) }),
    ];
    const head = h("thead", {}, h("tr", {}, ...[words.name, words.size, words.modified, words.actions].map((text) => h("th", { textContent: text, attributes: { scope: "col" } }))));
    const table = h("div", { className: "files", tabIndex: 0, attributes: { role: "region" }, aria: { label: words.title } }, h("table", {}, head, this.#body));
    const drop = h("p", { className: "drop", textContent: words.drop, aria: { hidden: "true" } });
    this.element = h("section", { className: "files-panel" }, panelHead(words.title, ...buttons, this.#input), this.#crumbs, this.#note.element, this.#uploads, table, this.#same.element, drop);
    this.#acceptDrops();
  }

  update(workspace, runs) {
    this.#runs = runs;
    this.#isBranch = Boolean(workspace.parent);
  }

  shown() {
    this.#open(this.#path);
  }

  /** Show a directory; null for the home of the desktop's user. */
  async #open(path) {
    const number = (this.#loading += 1);
    if (!this.#runs) {
      this.#note.say(words.notRunning, "error");
      return;
    }
    try {
      let found = await list(this.id, path ?? "/");
      if (path === null && found.home !== "/") {
        try {
          found = await list(this.id, found.home);
        } catch {
          // an account without its directory: the root will do
        }
      }
      if (number !== this.#loading) return;
      this.#path = found.encoded;
      this.#entries = found.entries;
      this.#note.say(found.truncated ? words.truncated(found.entries.length) : found.entries.length ? "" : words.empty);
      this.#render();
    } catch (failure) {
      if (number === this.#loading) this.#note.say(failure.message, "error");
    }
  }

  #render() {
    const parts = this.#path === "/" ? [] : this.#path.slice(1).split("/");
    const crumb = (label, path) => {
      const made = h("button", { type: "button", className: "crumb", title: label, on: { click: () => this.#open(path) } });
      setName(made, label);
      return made;
    };
    const crumbs = [crumb("/", "/"), ...parts.map((part, index) => crumb(decoded(part), `/${parts.slice(0, index + 1).join("/")}`))];
    crumbs.at(-1).setAttribute("aria-current", "location");
    const slash = () => h("span", { className: "slash", textContent: "/", aria: { hidden: "true" } });
    this.#same.refresh();
    this.#crumbs.replaceChildren(...crumbs.flatMap((part, index) => (index > 1 ? [slash(), part] : [part])));
    const isDirectory = (entry) => (entry.leads_to ?? entry.kind) === "directory";
    const ordered = [...this.#entries].sort((a, b) => isDirectory(b) - isDirectory(a) || a.name.localeCompare(b.name));
    const up = this.#path === "/" ? [] : [this.#upRow()];
    this.#body.replaceChildren(...up, ...ordered.map((entry) => this.#row(entry)));
  }

  #upRow() {
    const link = h("button", { type: "button", className: "file-name", on: { click: () => this.#open(parentOf(this.#path)) } }, icon("folder"), h("span", { textContent: words.up }));
    return h("tr", {}, h("td", {}, link), h("td", {}), h("td", {}), h("td", {}));
  }

  #row(entry) {
    const path = joined(this.#path, entry.encoded);
    const kind = entry.leads_to ?? entry.kind;
    const name = h("span", { textContent: entry.name });
    const target = entry.kind === "link" ? h("span", { className: "muted", textContent: ` → ${entry.target ?? ""}` }) : null;
    let label;
    if (kind === "directory") label = h("button", { type: "button", className: "file-name", on: { click: () => this.#open(path) } }, icon("folder"), name, target);
    else if (kind === "file") label = h("button", { type: "button", className: "file-name", title: words.save(entry.name), on: { click: () => this.#save(path) } }, icon("file"), name, target);
    else label = h("span", { className: "file-name muted", title: words.kinds[kind] ?? kind }, icon("file"), name, target);
    const actions = [];
    if (kind === "file") actions.push(button(words.save(entry.name), { iconName: "download", iconOnly: true, caption: words.captions.save, kind: "quiet", on: () => this.#save(path) }));
    if (entry.kind === "file" && this.#isBranch) actions.push(button(words.compare(entry.name), { iconName: "compare", iconOnly: true, caption: words.captions.compare, kind: "quiet", on: () => this.show("changes", path) }));
    if (entry.kind !== "mount") actions.push(button(words.remove(entry.name), { iconName: "trash", iconOnly: true, caption: words.captions.remove, kind: "quiet danger-hover", on: () => this.#askRemove(entry, path) }));
    const figures = [entry.kind === "file" ? size(entry.size) : "", entry.modified ? moment(entry.modified) : ""];
    return h("tr", { data: { name: entry.name } }, h("td", {}, label), ...figures.map((text) => h("td", { className: "figure", textContent: text })), h("td", { className: "file-actions" }, ...actions));
  }

  async #save(path) {
    try {
      await download(this.id, path);
    } catch (failure) {
      this.#note.say(failure.message, "error");
    }
  }

  // Sending

  #acceptDrops() {
    let inside = 0;
    const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
    this.element.addEventListener("dragenter", (event) => {
      if (!carriesFiles(event)) return;
      inside += 1;
      this.element.classList.add("dropping");
    });
    this.element.addEventListener("dragleave", (event) => {
      if (!carriesFiles(event)) return;
      inside -= 1;
      if (inside <= 0) this.element.classList.remove("dropping");
    });
    this.element.addEventListener("dragover", (event) => carriesFiles(event) && event.preventDefault());
    this.element.addEventListener("drop", (event) => {
      event.preventDefault();
      inside = 0;
      this.element.classList.remove("dropping");
      this.#take(event.dataTransfer.files);
    });
  }

  #take(chosen) {
    if (this.#path === null) return;
    for (const file of chosen) {
      const job = { file, path: joined(this.#path, encodeName(file.name)), into: this.#path };
      // Asked before gigabytes go out in vain.
      if (this.#isThere(job)) this.#askOverwrite(job);
      else this.#queue.push(job);
    }
    this.#input.value = "";
    this.#next();
  }

  #isThere({ path, into }) {
    return into === this.#path && this.#entries.some((entry) => entry.kind === "file" && joined(into, entry.encoded) === path);
  }

  #next() {
    while (this.#sending < AT_ONCE && this.#queue.length) this.#send(this.#queue.shift());
  }

  async #send(job, overwrite = false) {
    const { file, path, into } = job;
    this.#sending += 1;
    const bar = h("progress", { max: Math.max(1, file.size), value: 0, aria: { label: words.sending(file.name) } });
    const text = h("span");
    setName(text, file.name);
    const item = h("li", {}, text, bar);
    const call = upload(this.id, path, file, { overwrite, onProgress: (bytes) => (bar.value = bytes) });
    item.append(button(words.stop(file.name), { iconName: "close", iconOnly: true, kind: "quiet", on: () => call.abort() }));
    this.#uploads.append(item);
    try {
      await call.promise;
      this.#note.say(words.sent(file.name));
      if (this.#path === into) await this.#open(into);
      this.#note.say(words.sent(file.name));
    } catch (failure) {
      if (failure.status === 409 && !overwrite && this.#path === into) await this.#open(into);
      if (failure.status === 409 && !overwrite && this.#isThere(job)) this.#askOverwrite(job);
      else if (failure.code !== "aborted") this.#note.say(`${file.name}: ${failure.message}`, "error");
    } finally {
      item.remove();
      this.#sending -= 1;
      this.#next();
    }
  }

  // Questions

  #askOverwrite(job) {
    this.#ask(words.overwriteTitle(job.file.name), words.overwriteText, words.overwrite, "danger", () => this.#send(job, true));
  }

  #askRemove(entry, path) {
    const directory = entry.kind === "directory";
    this.#ask(words.removeTitle(entry.name), directory ? words.removeDirectory : words.removeFile, words.removeSubmit, "danger", async () => {
      await remove(this.id, path, directory);
      await this.#open(this.#path);
    });
  }

  #askDirectory() {
    if (this.#path === null) return;
    const dialog = new Dialog(words.newDirectory, { subtitle: decoded(this.#path), className: "narrow" });
    const input = h("input", { type: "text", autocomplete: "off", spellcheck: false, required: true });
    dialog.step([field(words.directoryName, input)], [button(common.cancel, { on: () => dialog.close() }), submitButton(words.create)]);
    dialog.onSubmit = async () => {
      const name = input.value;
      if (!name || name.includes("/")) {
        dialog.showError(new Fault(words.badName, input));
        return;
      }
      try {
        await makeDirectory(this.id, joined(this.#path, encodeName(name)));
        dialog.close();
        await this.#open(this.#path);
      } catch (failure) {
        dialog.showError(failure);
      }
    };
    dialog.show();
    input.focus();
  }

  #ask(title, text, label, kind, work) {
    const dialog = new Dialog(title, { className: "narrow" });
    const cancel = button(common.cancel, { on: () => dialog.close() });
    dialog.step([h("p", { textContent: text })], [cancel, submitButton(label, kind)]);
    dialog.onSubmit = async () => {
      dialog.close();
      try {
        await work();
      } catch (failure) {
        this.#note.say(failure.message, "error");
      }
    };
    dialog.show();
    cancel.focus();
  }
}

function moment(seconds) {
  const time = new Date(seconds * 1000);
  const today = new Date().toDateString() === time.toDateString();
  return today ? time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : time.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" });
}
