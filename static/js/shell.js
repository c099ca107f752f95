// What every page has around its content: connection state, banner, toasts, launch and log-out buttons.

import { logout, toLogin } from "./api.js";
import { button, h, icon, setText } from "./dom.js";
import { openLaunch } from "./launch.js";
import { store } from "./store.js";

const TOAST_MS = 14_000;
const CONNECTION_LABELS = { connecting: "Connecting", live: "Live", reconnecting: "Reconnecting…" };

/** A message in the corner; `action` is `{label, href}`. It stays longer while it has the focus or the pointer. */
export function toast(title, detail = "", { kind = "", action = null } = {}) {
  const element = h("div", { className: `toast ${kind}` }, icon(kind === "error" ? "alert" : "check"), h("div", { className: "toast-text" }, h("strong", { textContent: title }), detail ? h("p", { textContent: detail }) : null));
  if (action) element.append(h("a", { className: "button", href: action.href, textContent: action.label }));
  const remove = () => element.remove();
  element.append(button("Dismiss", { iconName: "close", iconOnly: true, kind: "quiet", on: remove }));
  let timer = setTimeout(remove, TOAST_MS);
  for (const type of ["pointerenter", "focusin"]) element.addEventListener(type, () => clearTimeout(timer));
  for (const type of ["pointerleave", "focusout"]) {
    element.addEventListener(type, () => {
      clearTimeout(timer);
      timer = setTimeout(remove, TOAST_MS / 2);
    });
  }
  document.getElementById("toasts").append(element);
}

function renderConnection() {
  const element = document.getElementById("connection");
  element.dataset.state = store.connection;
  setText(element.querySelector(".connection-text"), CONNECTION_LABELS[store.connection]);
}

function renderBanner() {
  const banner = document.getElementById("banner");
  const down = store.loaded && store.engine === "down";
  banner.hidden = !down;
  if (down) {
    const detail = store.engineMessage ? `${store.engineMessage.charAt(0).toUpperCase()}${store.engineMessage.slice(1)}. ` : "";
    const text = `${detail}Desktops that are open go on; launching, forking and discarding wait for it.`;
    if (banner.dataset.text !== text) {
      banner.dataset.text = text;
      banner.replaceChildren(icon("alert"), h("strong", { textContent: "The engine is down" }), h("span", { textContent: text }));
    }
  }
  document.getElementById("launch").disabled = down;
}

async function leave() {
  try {
    await logout();
    toLogin();
  } catch (failure) {
    toast("Could not log out", failure.message, { kind: "error" });
  }
}

/** Start a page: its shell, then `render` at every change. */
export function startPage(render) {
  document.getElementById("launch").addEventListener("click", () => openLaunch());
  document.getElementById("logout").addEventListener("click", leave);
  const all = () => {
    renderConnection();
    renderBanner();
    if (store.loaded) render();
  };
  store.addEventListener("change", all);
  all();
  store.start();
}
