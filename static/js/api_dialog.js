// What a program can do with a workspace: each action as curl and Python.

import { choice } from "./account_parts.js";
import { Dialog, field, submitButton } from "./dialog.js";
import { one } from "./inside.js";
import { snippet } from "./snippets.js";
import { again, byApi as words } from "./strings.js";

/** What there is of a desktop only. */
const onDesktop = (id) => ({
  picture: { method: "GET", path: `${one(id)}/screenshot?format=png`, save: "screen.png" },
  click: { method: "POST", path: `${one(id)}/actions`, body: { actions: [{ action: "click", x: 640, y: 400 }] } },
  type: { method: "POST", path: `${one(id)}/actions`, body: { actions: [{ action: "type", text: "hello" }] } },
});

/** Name to request, of a workspace; what a token may do comes first. */
const actionsOf = ({ id, desktop }) => ({
  ...(desktop ? onDesktop(id) : {}),
  run: { method: "POST", path: `${one(id)}/exec`, body: { argv: ["uname", "-a"] } },
  keep: { method: "POST", path: `${one(id)}/keepalive` },
  holder: { method: "GET", path: `${one(id)}/lease` },
  about: { method: "GET", path: one(id) },
  stats: { method: "GET", path: `${one(id)}/stats` },
  log: { method: "GET", path: `${one(id)}/logs?tail=200` },
  send: { method: "PUT", path: `${one(id)}/file?path=/tmp/notes.txt`, send: "notes.txt" },
  fetch: { method: "GET", path: `${one(id)}/file?path=/etc/hostname`, save: "hostname" },
  share: { method: "POST", path: `${one(id)}/shares`, body: { label: "", hours: 24 } },
  fork: { method: "POST", path: `${one(id)}/fork`, body: { copies: 2 } },
  discard: { method: "DELETE", path: one(id) },
  take: { method: "POST", path: `${one(id)}/lease`, body: { force: false }, person: true },
  handBack: { method: "DELETE", path: `${one(id)}/lease`, person: true },
});

export function openApi(workspace) {
  const actions = actionsOf(workspace);
  const dialog = new Dialog(words.title, { subtitle: workspace.name });
  const what = choice(Object.keys(actions).map((name) => [name, words.actions[name]]), Object.keys(actions)[0]);
  const same = snippet(() => actions[what.value], { open: true });
  what.addEventListener("change", same.refresh);
  dialog.step([field(words.what, what), same.element], [submitButton(again.done)]);
  dialog.onSubmit = () => dialog.close();
  dialog.show();
  what.focus();
}
