// The clipboard of a desktop as text in a box: where the browser lets no page read or write its own, and where there is no key that pastes.

import { request } from "./api.js";
import { copied } from "./clipboard.js";
import { Dialog, field, submitButton } from "./dialog.js";
import { button, h } from "./dom.js";
import { one } from "./inside.js";
import { snippet } from "./snippets.js";
import { clipboard as words } from "./strings.js";

export function openClipboard(workspace) {
  const path = `${one(workspace.id)}/clipboard`;
  const dialog = new Dialog(words.title, { subtitle: workspace.name });
  const text = h("textarea", { rows: 6, spellcheck: false, autocomplete: "off" });
  const told = h("p", { className: "saved", attributes: { role: "status" } });
  const submit = submitButton(words.put);
  const same = snippet(() => ({ method: "PUT", path, body: { text: text.value } }));
  const attempt = async (work) => {
    submit.disabled = true;
    dialog.hideError();
    told.textContent = "";
    try {
      told.textContent = await work();
    } catch (failure) {
      dialog.showError(failure, { text });
    }
    submit.disabled = false;
  };

  const fetched = async () => {
    text.value = (await request("GET", path)).text;
    same.refresh();
    return text.value ? words.fetched : words.empty;
  };

  const put = async () => {
    await request("PUT", path, { text: text.value });
    return words.there;
  };

  const fetch = button(words.fetch, { iconName: "reload", on: () => attempt(fetched) });
  const copy = button(words.copy, { on: () => attempt(() => copied(text.value, () => text.select(), words)) });
  dialog.step([h("p", { textContent: words.note }), field(words.text, text), told], [fetch, copy, submit], [same.element]);
  dialog.form.addEventListener("input", same.refresh);
  dialog.onSubmit = () => attempt(put);
  dialog.show();
  text.focus();
  attempt(fetched);
}
