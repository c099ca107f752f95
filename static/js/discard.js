// Discard a workspace, after a question.

import { discard } from "./api.js";
import { Dialog, submitButton } from "./dialog.js";
import { button, h } from "./dom.js";
import { snippet } from "./snippets.js";
import { store } from "./store.js";
import { common, discard as words } from "./strings.js";

export function openDiscard(workspace) {
  const dialog = new Dialog(words.title(workspace.name), { subtitle: workspace.id, className: "narrow" });
  const branches = [...store.workspaces.values()].filter((other) => other.parent === workspace.id).length;
  const text = h("p", { textContent: words.text });
  const kept = branches ? h("p", { className: "hint", textContent: words.branches(branches) }) : "";
  const cancel = button(common.cancel, { on: () => dialog.close() });
  const confirm = submitButton(words.submit, "danger");
  const { element: same } = snippet(() => ({ method: "DELETE", path: `/api/v1/workspaces/${workspace.id}` }));
  dialog.step([text, kept], [cancel, confirm], [same]);
  dialog.onSubmit = async () => {
    if (confirm.disabled) return;
    confirm.disabled = true;
    confirm.textContent = words.busy;
    dialog.hideError();
    try {
      await discard(workspace.id);
      dialog.close();
    } catch (failure) {
      if (failure.status === 404) {
        dialog.close();
        return;
      }
      dialog.showError(failure);
      confirm.disabled = false;
      confirm.textContent = common.retry;
    }
  };
  const gone = (event) => event.detail.workspace === workspace.id && dialog.close();
  store.addEventListener("gone", gone);
  dialog.onClose = () => store.removeEventListener("gone", gone);
  dialog.show();
  cancel.focus();
}
