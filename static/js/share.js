// The page of a share link. The link's secret stands behind the `#`, which no browser sends; it goes to the portal in a request's body.

import { openShare } from "./account_api.js";
import { dateTime } from "./dates.js";
import { button, h, setName } from "./dom.js";
import { again, share } from "./strings.js";

const SECRET = "tclone-share";
// The size of a desktop's screen; the frame has it and is scaled as a whole.
const SCREEN = { width: 1280, height: 800 };
const FRAME = "shared-desktop";

const place = document.getElementById("place");
const message = document.getElementById("message");
const about = document.getElementById("about");
let frame = null;

/** From the address, which then forgets it: titles, bookmarks and screenshots shall not hold it. A reload finds it again. */
function takeSecret() {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem(SECRET, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(SECRET);
}

function say(text, retry) {
  frame?.remove();
  frame = null;
  message.replaceChildren(h("span", { textContent: text }));
  if (retry) message.append(button(again.retry, { on: open }));
  message.hidden = false;
  about.textContent = "";
}

async function open() {
  const secret = takeSecret();
  if (!secret) {
    say(share.noSecret, false);
    return;
  }
  message.hidden = true;
  about.textContent = share.opening;
  let entrance;
  try {
    entrance = await openShare(secret);
  } catch (failure) {
    const over = failure.status === 404;
    say(over ? share.over : failure.message, !over);
    return;
  }
  setName(document.getElementById("name"), entrance.name);
  document.title = share.pageTitle(entrance.name);
  about.textContent = [entrance.label && share.madeFor(entrance.label), share.viewOnly(dateTime(entrance.expires))].filter(Boolean).join(" · ");
  show(entrance);
  endAt(entrance.expires);
}

/** The one-time code goes to the desktop's own host in a form, into a frame. */
function show(entrance) {
  frame?.remove();
  frame = h("iframe", {
    name: FRAME,
    title: share.frame(entrance.name),
    attributes: { sandbox: "allow-scripts allow-same-origin allow-forms", allow: "autoplay *; fullscreen *" },
  });
  place.append(frame);
  fit();
  const code = h("input", { type: "hidden", name: "code", value: entrance.code });
  const form = h("form", { method: "post", action: entrance.action, target: FRAME, hidden: true }, code);
  document.body.append(form);
  form.submit();
  form.remove();
}

function fit() {
  if (!frame) return;
  const { clientWidth: width, clientHeight: height } = place;
  const scale = Math.min(width / SCREEN.width, height / SCREEN.height);
  frame.style.transform = `translate(${(width - SCREEN.width * scale) / 2}px, ${(height - SCREEN.height * scale) / 2}px) scale(${scale})`;
}

/** Say that it is over when its time has come: the picture in the frame cannot. */
function endAt(expires) {
  const left = expires * 1000 - Date.now();
  if (left < 2 ** 31) setTimeout(() => say(share.over, false), Math.max(left, 0));
}

new ResizeObserver(fit).observe(place);
window.addEventListener("hashchange", () => location.hash && open());
open();
