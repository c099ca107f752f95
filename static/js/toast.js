// Messages in the corner of the page, read out politely.

import { button, h, icon, prose } from "./dom.js";
import { common } from "./strings.js";

const TOAST_MS = 14_000;

/** A message in the corner; `action` is `{label, href}`. It goes after `ms` milliseconds, and stays longer while it has the focus or the pointer.
 * Each line of `detail` is a paragraph. */
export function toast(title, detail = "", { kind = "", action = null, ms = TOAST_MS } = {}) {
  const lines = detail.split("\n").filter(Boolean).map((line) => h("p", {}, ...prose(line)));
  const element = h("div", { className: `toast ${kind}` }, icon(kind === "error" ? "alert" : "check"), h("div", { className: "toast-text" }, h("strong", { textContent: title }), ...lines));
  if (action) element.append(h("a", { className: "button", href: action.href, textContent: action.label }));
  const remove = () => element.remove();
  element.append(button(common.dismiss, { iconName: "close", iconOnly: true, kind: "quiet", on: remove }));
  document.getElementById("toasts").append(element);
  let timer = setTimeout(remove, ms);
  for (const type of ["pointerenter", "focusin"]) element.addEventListener(type, () => clearTimeout(timer));
  for (const type of ["pointerleave", "focusout"]) {
    element.addEventListener(type, () => {
      clearTimeout(timer);
      timer = setTimeout(remove, TOAST_MS / 2);
    });
  }
}
