// What a program can do with a workspace: each action as curl and Python.

import { choice } from "./account_parts.js";
import { Dialog, field, submitButton } from "./dialog.js";
import { one } from "./inside.js";
import { snippet } from "./snippets.js";
import { again, byApi as words } from "./strings.js";

/** Name to request, of a workspace. */
const actionsOf = (id) => ({
  take: { method: "POST", path: `${one(id)}/lease`, body: { force: false }, person: true },
  handBack: { method: "DELETE", path: `${one(id)}/lease`, person: true },
  keep: { method: "POST", path: `${one(id)}/keepalive` },
  holder: { method: "GET", path: `${one(id)}/lease` },
  picture: { method: "GET", path: `${one(id)}/screenshot?format=png`, save: "screen.png" },
  about: { method: "GET", path: one(id) },
  stats: { method: "GET", path: `${one(id)}/stats` },
  log: { method: "GET", path: `${one(id)}/logs?tail=200` },
  send: { method: "PUT", path: `${one(id)}/file?path=/tmp/notes.txt`, send: "notes.txt" },
  fetch: { method: "GET", path: `${one(id)}/file?path=/etc/hostname`, save: "hostname" },
  share: { method: "POST", path: `${one(id)}/shares`, body: { label: "", hours: 24 } },
  fork: { method: "POST", path: `${one(id)}/fork`, body: { copies: 2 } },
  discard: { method: "DELETE", path: one(id) },
});

export function openApi(workspace) {
  const actions = actionsOf(workspace.id);
  const dialog = new Dialog(words.title, { subtitle: workspace.name });
  const what = choice(Object.keys(actions).map((name) => [name, words.actions[name]]), "take");
  const same = snippet(() => actions[what.value], { open: true });
  what.addEventListener("change", same.refresh);
  dialog.step([field(words.what, what), same.element], [submitButton(again.done)]);
  dialog.onSubmit = () => dialog.close();
  dialog.show();
  what.focus();
}
