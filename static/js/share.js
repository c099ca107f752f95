// The page of a share link. The link's secret stands behind the `#`, which no browser sends; it goes to the portal in a request's body.

import { openShare } from "./account_api.js";
import { Channel } from "./channel.js";
import { dateTime } from "./dates.js";
import { button, h, setName } from "./dom.js";
import { Phases } from "./phases.js";
import { again, share } from "./strings.js";

const SECRET = "tclone-share";
// The size of a desktop's screen; the frame has it and is scaled as a whole.
const SCREEN = { width: 1280, height: 800 };
const FRAME = "shared-desktop";
// From then on the wait is called long, and may be begun anew.
const LONG_MS = 15000;

const place = document.getElementById("place");
const message = document.getElementById("message");
const about = document.getElementById("about");
const progress = document.getElementById("progress");
let frame = null;
let opening = null;
let channel = null;

/** What is shown in the desktop's place until its picture is there. */
class Opening {
  #phases = new Phases();
  #steps = [];
  #slow = h("div", { className: "share-progress-slow", attributes: { role: "status" } });

  /** `note`: why it is shown again; empty for the first time. */
  constructor(note = "") {
    const why = note ? h("p", { textContent: note, attributes: { role: "status" } }) : null;
    progress.replaceChildren(...[why, this.#phases.total, this.#phases.element, this.#slow].filter(Boolean));
    progress.hidden = false;
    this.late = setTimeout(() => this.#slow.replaceChildren(h("p", { className: "hint", textContent: share.slow }), button(again.retry, { on: open })), LONG_MS);
  }

  step(phase) {
    if (this.#steps.some((step) => step.phase === phase)) return;
    const now = performance.now();
    this.#steps.push({ phase, detail: "", elapsed_ms: now - this.#phases.started, received: now });
    this.#phases.update([...this.#steps]);
  }

  end() {
    clearTimeout(this.late);
    progress.hidden = true;
    progress.replaceChildren();
  }
}

/** Nothing of what was opened before is heard or shown any more. */
function forget() {
  channel?.close();
  frame?.remove();
  opening?.end();
  channel = frame = opening = null;
}

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
  forget();
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
  forget();
  message.hidden = true;
  about.textContent = share.opening;
  const mine = (opening = new Opening());
  mine.step("open link");
  let entrance;
  try {
    entrance = await openShare(secret);
  } catch (failure) {
    if (opening !== mine) return;
    const over = failure.status === 404;
    say(over ? share.over : failure.message, !over);
    return;
  }
  if (opening !== mine) return; // begun anew meanwhile
  setName(document.getElementById("name"), entrance.name);
  document.title = share.pageTitle(entrance.name);
  about.textContent = [entrance.label && share.madeFor(entrance.label), share.viewOnly(dateTime(entrance.expires))].filter(Boolean).join(" · ");
  show(entrance);
  endAt(entrance.expires);
}

/** The one-time code goes to the desktop's own host in a form, into a frame. */
function show(entrance) {
  opening.step("open stream");
  frame = h("iframe", {
    name: FRAME,
    className: "arriving",
    title: share.frame(entrance.name),
    attributes: { sandbox: "allow-scripts allow-same-origin allow-forms", allow: "autoplay *; fullscreen *" },
  });
  place.append(frame);
  fit();
  channel = new Channel(frame, new URL(entrance.action).origin, { hear, silent: shown });
  const code = h("input", { type: "hidden", name: "code", value: entrance.code });
  const form = h("form", { method: "post", action: entrance.action, target: FRAME, hidden: true }, code);
  document.body.append(form);
  form.submit();
  form.remove();
}

/** What the desktop's own page says (channel.js). */
function hear(type) {
  if (type === "hello") opening?.step("first picture");
  else if (type === "picture") shown();
  else if (type === "waiting" && opening === null) {
    opening = new Opening(share.interrupted);
    opening.step("first picture");
    frame.classList.add("arriving");
  }
}

function shown() {
  opening?.end();
  opening = null;
  frame.classList.remove("arriving");
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
