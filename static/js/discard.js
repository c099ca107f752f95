// Discard a workspace, after a question.

import { discard } from "./api.js";
import { Dialog, submitButton } from "./dialog.js";
import { button, h } from "./dom.js";
import { plural } from "./format.js";
import { store } from "./store.js";

export function openDiscard(workspace) {
  const dialog = new Dialog(`Discard ${workspace.name}?`, { subtitle: workspace.id, className: "narrow" });
  const branches = [...store.workspaces.values()].filter((other) => other.parent === workspace.id).length;
  const text = h("p", { textContent: "Its processes, files and ports go at once and cannot be had back." });
  const kept = branches ? h("p", { className: "hint", textContent: `${plural(branches, "branch")} forked from it will go on.` }) : "";
  const cancel = button("Cancel", { on: () => dialog.close() });
  const confirm = submitButton("Discard", "danger");
  dialog.step([text, kept], [cancel, confirm]);
  dialog.onSubmit = async () => {
    if (confirm.disabled) return;
    confirm.disabled = true;
    confirm.textContent = "Discarding…";
    dialog.hideError();
    try {
      await discard(workspace.id);
      dialog.close();
    } catch (failure) {
      if (failure.status === 404) {
        dialog.close();
        return;
      }
      dialog.showError(failure.message);
      confirm.disabled = false;
      confirm.textContent = "Retry";
    }
  };
  const gone = (event) => event.detail.workspace === workspace.id && dialog.close();
  store.addEventListener("gone", gone);
  dialog.onClose = () => store.removeEventListener("gone", gone);
  dialog.show();
  cancel.focus();
}
