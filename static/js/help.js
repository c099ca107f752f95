// The list of keyboard shortcuts.

import { Dialog } from "./dialog.js";
import { button, h } from "./dom.js";
import { common, keys as words } from "./strings.js";

export function openHelp(commands) {
  const dialog = new Dialog(words.helpTitle);
  const rows = commands.map(({ shown, label }) => h("div", {}, h("dt", {}, h("kbd", { textContent: shown })), h("dd", { textContent: label })));
  const leader = h("p", { className: "leader" }, h("kbd", { textContent: words.leader }));
  dialog.step([h("p", { textContent: words.helpIntro }), leader, h("dl", { className: "shortcuts" }, ...rows), h("p", { className: "hint", textContent: words.helpOutside })], [button(common.close, { on: () => dialog.close() })]);
  dialog.show();
}
