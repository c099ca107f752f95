// The page of the API: its content is there already; an operation that the address names is unfolded.

import { startPage } from "./shell.js";

function unfold() {
  const named = document.getElementById(location.hash.slice(1));
  if (named?.matches("details")) named.open = true;
}

window.addEventListener("hashchange", unfold);
unfold();
startPage(() => {});
