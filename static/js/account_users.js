// All users, for admins.

import { addUser, changeUser, removeUser, resetPassword, users as list } from "./account_api.js";
import { actions, fillPart, formDialog, showOnce, table } from "./account_parts.js";
import { Dialog, field, segmented } from "./dialog.js";
import { button, h } from "./dom.js";
import { users as words } from "./strings.js";

function stateOf(user) {
  if (user.disabled) return words.disabled;
  if (user.one_time_until !== null) return words.oneTime;
  return user.external ? words.external : words.enabled;
}

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
    const role = user.role === "admin" ? act(words.makeUser, change({ role: "user" })) : act(words.makeAdmin, change({ role: "admin" }));
    const able = user.disabled ? act(words.enable, change({ disabled: false })) : act(words.disable, change({ disabled: true }));
    const buttons = [role, able];
    if (!user.external) buttons.push(act(words.reset, async () => tellPassword(await resetPassword(user.user), redo)));
    buttons.push(act(words.remove, () => askRemove(user.user, redo), "danger"));
    const name = user.user === known.user ? `${user.user} (${words.you})` : user.user;
    return [name, Object.fromEntries(words.roles)[user.role], stateOf(user), user.user === known.user ? "" : actions(...buttons)];
  });
  const add = button(words.add, { kind: "primary", on: () => openAdd(() => attempt(redo)) });
  fillPart(section, words, table(words.title, words.columns, rows), add);
}

async function tellPassword(made, redo) {
  const dialog = new Dialog(made.user, { className: "narrow" }).show();
  showOnce(dialog, words.once(made.user), made.password);
  await redo();
}

function openAdd(redo) {
  const name = h("input", { type: "text", maxLength: 64, autocomplete: "off", autocapitalize: "none", spellcheck: false });
  const role = segmented("role", words.role, words.roles, "user");
  const dialog = formDialog(words.add, [field(words.name, name, words.nameHint), role], words.add, async () => {
    const made = await addUser(name.value.trim(), dialog.form.elements.role.value);
    showOnce(dialog, words.once(made.user), made.password);
    redo();
  });
  name.focus();
}

function askRemove(user, redo) {
  const note = h("p", { textContent: words.removeNote });
  const dialog = formDialog(words.removeTitle(user), [note], words.remove, async () => {
    await removeUser(user);
    dialog.close();
    await redo();
  }, "danger");
}
