// All users, with their quotas.

import { addUser, changeUser, removeUser, removeUsersFactor, resetPassword, users as list } from "./account_api.js";
import { PART, limitInput, limitOf } from "./admin_settings.js";
import { actions, fillPart, formDialog, showOnce, table } from "./account_parts.js";
import { field, segmented } from "./dialog.js";
import { button, h } from "./dom.js";
import { setSize } from "./format.js";
import { snippet } from "./snippets.js";
import { users as words } from "./strings_admin.js";

function stateOf(user) {
  const state = aloneStateOf(user);
  return user.second_factor ? words.withFactor(state) : state;
}

function aloneStateOf(user) {
  if (user.disabled) return words.disabled;
  if (user.one_time_until !== null) return words.oneTime;
  return user.external ? words.external : words.enabled;
}

const GIB = 1024 ** 3;

/** "2 of 5", or what is used when there is no limit */
const useOf = (user, name, shown) => (user.limits[name] === null ? shown(user.use[name]) : words.of(shown(user.use[name]), shown(user.limits[name])));

export async function usersPart(section, known, attempt) {
  const found = await list();
  const redo = () => usersPart(section, known, attempt);
  const rows = found.map((user) => {
    const act = (label, work, kind = "") => {
      const made = button(label, { kind, on: () => attempt(work) });
      made.setAttribute("aria-label", words.actionsFor(label, user.user));
      return made;
    };
    const change = (changes) => async () => (await changeUser(user.user, changes), redo());
    // What ends something or gives every right is asked first.
    const asked = (label, [title, note], work, kind) => act(label, () => formDialog(title(user.user), [h("p", { textContent: note })], label, work, { kind }), "danger-hover");
    const closing = (work) => async (dialog) => {
      await work();
      dialog.close();
    };
    const reset = async (dialog) => {
      showOnce(dialog, words.once(user.user), (await resetPassword(user.user)).password);
      await redo();
    };
    const role = user.role === "admin" ? act(words.makeUser, change({ role: "user" })) : asked(words.makeAdmin, words.askAdmin, closing(change({ role: "admin" })), "primary");
    const able = user.disabled ? act(words.enable, change({ disabled: false })) : asked(words.disable, words.askDisable, closing(change({ disabled: true })), "danger");
    const buttons = [role, able];
    if (user.role !== "admin") buttons.unshift(act(words.quota, async () => openQuota(user, redo)));
    if (!user.external) buttons.push(asked(words.reset, words.askReset, reset, "danger"));
    if (user.second_factor) buttons.push(asked(words.removeFactor, words.askRemoveFactor, closing(async () => (await removeUsersFactor(user.user), redo())), "danger"));
    buttons.push(asked(words.remove, words.askRemove, closing(async () => (await removeUser(user.user), redo())), "danger"));
    const name = user.user === known.user ? `${user.user} (${words.you})` : user.user;
    const used = [useOf(user, "workspaces", String), useOf(user, "memory", setSize), useOf(user, "disk", setSize), useOf(user, "cpus", String)];
    return [name, Object.fromEntries(words.roles)[user.role], stateOf(user), ...used, user.user === known.user ? "" : actions(...buttons)];
  });
  const add = button(words.add, { kind: "primary", on: () => openAdd(() => attempt(redo)) });
  fillPart(section, words, h("div", { className: "scrolls" }, table(words.title, words.columns, rows)), add);
}

function openQuota(user, redo) {
  const workspaces = limitInput(user.quota.workspaces);
  const memory = limitInput(user.quota.memory, GIB);
  const disk = limitInput(user.quota.disk, GIB);
  const cpus = limitInput(user.quota.cpus, PART);
  const wanted = () => ({
    quota: {
      workspaces: limitOf(workspaces, words.mostWorkspaces), memory: limitOf(memory, words.mostMemory, GIB), disk: limitOf(disk, words.mostDisk, GIB), cpus: limitOf(cpus, words.mostCpus, PART),
    },
  });
  const described = () => {
    try {
      return wanted();
    } catch {
      return { quota: user.quota };
    }
  };
  const same = snippet(() => ({ method: "PATCH", path: `/api/v1/users/${encodeURIComponent(user.user)}`, body: described() }));
  const fields = [
    h("p", { textContent: words.quotaNote }),
    field(words.mostWorkspaces, workspaces),
    field(words.mostMemory, memory, words.mostMemoryHint),
    field(words.mostDisk, disk, words.mostDiskHint),
    field(words.mostCpus, cpus, words.mostCpusHint),
  ];
  const dialog = formDialog(words.quotaTitle(user.user), fields, words.save, async () => {
    await changeUser(user.user, wanted());
    dialog.close();
    await redo();
  }, { after: [same.element] });
  dialog.form.addEventListener("input", same.refresh);
  workspaces.focus();
}

function openAdd(redo) {
  const name = h("input", { type: "text", maxLength: 64, autocomplete: "off", autocapitalize: "none", spellcheck: false });
  const role = segmented("role", words.role, words.roles, "user");
  const asked = () => ({ user: name.value.trim(), role: role.querySelector("input:checked").value });
  const same = snippet(() => ({ method: "POST", path: "/api/v1/users", body: asked() }));
  const dialog = formDialog(words.add, [field(words.name, name, words.nameHint), role], words.add, async () => {
    const made = await addUser(asked());
    showOnce(dialog, words.once(made.user), made.password);
    redo();
  }, { named: { user: name }, after: [same.element] });
  dialog.form.addEventListener("input", same.refresh);
  name.focus();
}
