// What every page has around its content: connection state, banner, launch and log-out buttons.

import { logout, toLogin } from "./api.js";
import { h, icon, prose, setText } from "./dom.js";
import { openLaunch } from "./launch.js";
import { store } from "./store.js";
import { toast } from "./toast.js";

const CONNECTION_LABELS = { connecting: "Connecting", live: "Live", reconnecting: "Reconnecting…" };

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
    const detail = store.engineMessage ? `${store.engineMessage}. ` : "";
    const text = `${detail}Desktops that are open go on; launching, forking and discarding wait for it.`;
    if (banner.dataset.text !== text) {
      banner.dataset.text = text;
      banner.replaceChildren(icon("alert"), h("strong", { textContent: "The engine is down" }), h("span", {}, ...prose(text)));
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
