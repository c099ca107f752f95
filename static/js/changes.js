// What a workspace changed: against its parent, its image or another workspace; and one file of it line by line.

import { button, h, icon } from "./dom.js";
import { size } from "./format.js";
import { compare, compareFile, decoded, download, one } from "./inside.js";
import { Note, panelHead } from "./panel.js";
import { Chosen, openPromote } from "./promote.js";
import { snippet } from "./snippets.js";
import { store } from "./store.js";
import { common } from "./strings.js";
import { changes as words } from "./strings_panels.js";

const MOST_SHOWN = 2000;
const MOST_LINES = 5000;
const SIGNS = { added: "+", changed: "~", deleted: "−" };

export class ChangesPanel {
  #workspace = null;
  #base = "parent";
  #found = null;
  #loading = 0;
  #note = new Note();
  // What the words mean where the other side has a life of its own.
  #meaning = h("p", { className: "panel-hint", hidden: true });
  #select = h("select", { id: "changes-base", on: { change: () => this.#compareWith(this.#select.value) } });
  // What the desktop wrote by itself: whether it is shown, and the line that says how much of it there is.
  #all = false;
  #own = h("p", { className: "own-files", hidden: true });
  // Of a list against another workspace: the changes that are to become that one's.
  #chosen = new Chosen((paths) => openPromote(this.id, this.#workspace.name, this.#other, paths, (text) => this.#promoted(text)));
  #list = h("ul", { className: "change-list" });
  #file = h("div", { className: "file-diff", hidden: true });

  #same;

  constructor({ id }) {
    this.id = id;
    this.#same = snippet(() => ({ method: "GET", path: `${one(id)}/diff?base=${this.#base}${this.#all ? "&own=1" : ""}` }));
    const refresh = button(words.refresh, { iconName: "reload", iconOnly: true, caption: words.refreshCaption, kind: "quiet", on: () => this.#compareWith(this.#base) });
    const base = h("div", { className: "base" }, h("label", { htmlFor: "changes-base", textContent: words.against }), this.#select);
    this.element = h("section", { className: "changes-panel" }, panelHead(words.title, refresh), base, this.#meaning, this.#note.element, this.#own, this.#chosen.element, this.#list, this.#file, this.#same.element);
  }

  update(workspace) {
    this.#workspace = workspace;
  }

  /** With a path, show what became of that file. */
  shown(path = null) {
    this.#fillBases();
    if (path !== null) this.#openFile(path);
    else if (this.#found === null) this.#compareWith(this.#base);
  }

  #fillBases() {
    const { parent, image } = this.#workspace;
    const others = store.ordered().map(({ workspace }) => workspace).filter((other) => other.image === image && ![this.id, parent].includes(other.id));
    const known = store.workspaces.get(parent);
    const choices = known ? [["parent", words.parent(known.name)]] : [];
    choices.push(["image", words.image(image)], ...others.map((other) => [other.id, `${other.name} (${other.id})`]));
    if (!choices.some(([value]) => value === this.#base)) this.#base = choices[0][0];
    this.#select.replaceChildren(...choices.map(([value, label]) => h("option", { value, textContent: label, selected: value === this.#base })));
  }

  /** The workspace on the other side, which goes on and changes, too; null: an image, which stays as it is. */
  get #other() {
    return store.workspaces.get(this.#base === "parent" ? this.#workspace.parent : this.#base) ?? null;
  }

  #kinds() {
    return this.#other ? words.sides(this.#other.name) : words.kinds;
  }

  async #compareWith(base) {
    this.#base = base;
    this.#same.refresh();
    this.#meaning.hidden = this.#other === null;
    if (this.#other) this.#meaning.textContent = words.meaning(this.#other.name, base === "parent");
    const number = (this.#loading += 1);
    this.#closeFile();
    this.#list.replaceChildren();
    this.#own.hidden = true;
    this.#chosen.reset(null);
    this.#note.say(words.comparing);
    try {
      const found = await compare(this.id, base, this.#all);
      if (number !== this.#loading) return;
      this.#found = found;
      this.#render();
    } catch (failure) {
      if (number === this.#loading) this.#note.say(failure.message, "error");
    }
  }

  #render() {
    const { done } = this.#found;
    // What somebody did comes first, so that none of it falls off the end.
    const changes = this.#found.changes.toSorted((one, other) => one.own - other.own);
    this.#own.hidden = !done.own;
    this.#own.replaceChildren(
      h("span", { textContent: this.#all ? words.ownShown : words.ownHidden(done.own) }),
      button(this.#all ? common.hide : words.show, { kind: "small", on: () => this.#showOwn(!this.#all) }),
    );
    const count = (kind) => changes.filter(({ change }) => change === kind).length;
    const text = changes.length ? words.summary(this.#kinds(), count("added"), count("changed"), count("deleted")) : words.none;
    this.#note.say(done.truncated || changes.length > MOST_SHOWN ? `${text} ${words.truncated(Math.min(MOST_SHOWN, changes.length))}` : text);
    this.#chosen.reset(changes.length && this.#other ? this.#other.name : null);
    this.#list.replaceChildren(...changes.slice(0, MOST_SHOWN).map((change) => this.#row(change)));
  }

  async #showOwn(all) {
    this.#all = all;
    await this.#compareWith(this.#base);
    this.#own.querySelector("button")?.focus();
  }

  async #promoted(text) {
    await this.#compareWith(this.#base);
    this.#note.say(text);
  }

  #row(found) {
    const { change, path, encoded, kind, size: now, before } = found;
    const sign = h("span", { className: `sign ${change}`, textContent: SIGNS[change], title: this.#kinds()[change], aria: { hidden: "true" } });
    const said = h("span", { className: "sr-only", textContent: `${this.#kinds()[change]}: ` });
    const figure = kind !== "file" ? words.fileKinds[kind] ?? kind : now === null || before === null || now === before ? size(now ?? before) : `${size(before)} → ${size(now)}`;
    const inner = [sign, said, h("span", { className: "change-path", textContent: path }), h("span", { className: "muted figure", textContent: figure })];
    const content = kind === "file" ? h("button", { type: "button", className: "change", on: { click: () => this.#openFile(encoded) } }, ...inner) : h("div", { className: "change" }, ...inner);
    return h("li", {}, this.#other ? this.#chosen.box(found) : null, content);
  }

  async #openFile(path) {
    const number = (this.#loading += 1);
    this.#list.hidden = true;
    this.#own.hidden = true;
    this.#chosen.reset(null);
    this.#file.hidden = false;
    const back = button(words.back, { iconName: "left", on: () => this.#back() });
    const save = button(words.save, { iconName: "download", kind: "quiet", on: () => download(this.id, path).catch((failure) => this.#note.say(failure.message, "error")) });
    const head = h("div", { className: "file-diff-head" }, back, h("h3", { className: "mono", textContent: decoded(path) }), save);
    this.#file.replaceChildren(head);
    this.#note.say(words.comparing);
    back.focus();
    try {
      const found = await compareFile(this.id, path, this.#base);
      if (number !== this.#loading) return;
      save.hidden = found.size === null;
      this.#note.say("");
      this.#file.append(found.same ? h("p", { className: "panel-hint", textContent: words.same }) : found.binary ? h("p", { className: "panel-hint", textContent: words.binary(size(found.before ?? 0), size(found.size ?? 0)) }) : lines(found.diff, this.#other?.name ?? this.#workspace.image));
    } catch (failure) {
      if (number === this.#loading) this.#note.say(failure.message, "error");
    }
  }

  #closeFile() {
    this.#file.hidden = true;
    this.#file.replaceChildren();
    this.#list.hidden = false;
  }

  #back() {
    this.#loading += 1;
    this.#closeFile();
    if (this.#found) this.#render();
    else this.#compareWith(this.#base);
    this.#select.focus();
  }
}

/** A unified difference, a row for each line with the numbers of both sides; `name`: of the other side. */
function lines(diff, name) {
  const rows = [];
  let before = 0;
  let after = 0;
  const all = diff.split("\n");
  if (all.at(-1) === "") all.pop();
  // The first two lines name the files, which the heading does.
  for (const line of all.slice(2, MOST_LINES)) {
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(line);
    if (hunk) {
      [before, after] = [Number(hunk[1]), Number(hunk[2])];
      rows.push(row("hunk", "", "", line));
    } else if (line.startsWith("+")) rows.push(row("added", "", after++, line));
    else if (line.startsWith("-")) rows.push(row("deleted", before++, "", line));
    else if (line.startsWith("\\")) rows.push(row("hunk", "", "", line.slice(2)));
    else rows.push(row("", before++, after++, line));
  }
  if (all.length > MOST_LINES) rows.push(row("hunk", "", "", words.more(all.length - MOST_LINES)));
  const table = h("div", { className: "diff", tabIndex: 0, attributes: { role: "region" }, aria: { label: words.difference } }, h("table", {}, h("tbody", {}, ...rows)));
  const parts = document.createDocumentFragment();
  parts.append(h("p", { className: "panel-hint", textContent: words.legend(name) }), table);
  return parts;
}

function row(kind, before, after, text) {
  const sign = { added: "+", deleted: "−" }[kind] ?? "";
  const content = kind === "hunk" ? text : text.slice(1);
  return h("tr", { className: kind }, h("td", { className: "line-number", textContent: before }), h("td", { className: "line-number", textContent: after }), h("td", { className: "line-sign", textContent: sign }), h("td", { className: "line-text", textContent: content }));
}
