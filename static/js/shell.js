// What every page has around its content: connection state, banner, launch and log-out buttons.

import { amAdmin, logout, toLogin } from "./api.js";
import { h, icon, prose, setText } from "./dom.js";
import { openLaunch } from "./launch.js";
import { store } from "./store.js";
import { connection as words } from "./strings.js";
import { toast } from "./toast.js";

function renderConnection() {
  const element = document.getElementById("connection");
  element.dataset.state = store.connection;
  setText(element.querySelector(".connection-text"), words[store.connection]);
}

function renderBanner() {
  const banner = document.getElementById("banner");
  const down = store.loaded && store.engine === "down";
  banner.hidden = !down;
  if (down) {
    const detail = store.engineMessage ? `${store.engineMessage}. ` : "";
    const text = `${detail}${words.engineDownNote}`;
    if (banner.dataset.text !== text) {
      banner.dataset.text = text;
      banner.replaceChildren(icon("alert"), h("strong", { textContent: words.engineDown }), h("span", {}, ...prose(text)));
    }
  }
  document.getElementById("launch").disabled = down;
}

async function leave() {
  try {
    await logout();
    toLogin();
  } catch (failure) {
    toast(words.logoutFailed, failure.message, { kind: "error" });
  }
}

/** Start a page: its shell, then `render` at every change. */
export function startPage(render) {
  document.getElementById("launch").addEventListener("click", () => openLaunch());
  const toasts = document.getElementById("toasts");
  // Style sheets end what messages would cover above them.
  new ResizeObserver(() => document.body.style.setProperty("--toasts", `${toasts.offsetHeight}px`)).observe(toasts);
  document.getElementById("logout").addEventListener("click", leave);
  const all = () => {
    renderConnection();
    renderBanner();
    document.getElementById("admin").hidden = !amAdmin();
    if (store.loaded) render();
  };
  store.addEventListener("change", all);
  all();
  store.start();
}
