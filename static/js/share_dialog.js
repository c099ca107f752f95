// Share links of one workspace: make, see who looks on, revoke.

import { createShare, revokeShare, shares as list } from "./account_api.js";
import { actions, choice, showOnce } from "./account_parts.js";
import { dateTime } from "./dates.js";
import { Dialog, field, submitButton } from "./dialog.js";
import { button, h } from "./dom.js";
import { snippet } from "./snippets.js";
import { store } from "./store.js";
import { share as words } from "./strings.js";

export function openShareDialog(workspace) {
  const dialog = new Dialog(words.title, { subtitle: words.subtitle(workspace.name) });
  const label = h("input", { type: "text", maxLength: 100, autocomplete: "off" });
  const life = choice(words.choices, 24);
  const links = h("div", { className: "share-links", aria: { live: "polite" } });
  const submit = submitButton(words.create);
  const wanted = () => ({ label: label.value.trim(), hours: Number(life.value) });
  const same = snippet(() => ({ method: "POST", path: `/api/v1/workspaces/${workspace.id}/shares`, body: wanted() }));
  const attempt = async (work) => {
    submit.disabled = true;
    dialog.hideError();
    try {
      await work();
    } catch (failure) {
      dialog.showError(failure, { label, hours: life });
    }
    submit.disabled = false;
  };

  async function refresh() {
    const found = await list(workspace.id);
    const rows = found.map((link) => {
      const name = link.label || words.unnamed;
      const revoke = button(words.revoke, { kind: "danger-hover", on: () => attempt(async () => (await revokeShare(workspace.id, link.id), refresh())) });
      revoke.setAttribute("aria-label", words.revokeLabel(name));
      const about = `${words.until(dateTime(link.expires))} · ${words.viewers(link.viewers)}`;
      return h("li", {}, h("div", {}, h("strong", { textContent: name }), h("p", { className: "hint", textContent: about })), actions(revoke));
    });
    links.replaceChildren(h("h3", { textContent: words.links }), rows.length ? h("ul", {}, ...rows) : h("p", { className: "hint", textContent: words.none }));
  }

  dialog.step([h("p", { textContent: words.note }), field(words.label, label, words.labelHint), field(words.lasts, life)], [submit], [links, same.element]);
  dialog.form.addEventListener("input", same.refresh);
  dialog.onSubmit = () =>
    attempt(async () => {
      const made = await createShare(workspace.id, wanted());
      showOnce(dialog, words.once, made.link);
    });
  const changed = (event) => event.detail.workspace === workspace.id && dialog.isOpen && attempt(refresh);
  store.addEventListener("viewers", changed);
  dialog.onClose = () => store.removeEventListener("viewers", changed);
  dialog.show();
  label.focus();
  attempt(refresh);
}
