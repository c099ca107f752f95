// Added by the stream process to the viewer's page, which is the workspace's own and may be hostile. It tells the portal's page around it
// when a picture is there, and takes from that page, and from no other, orders to let go of keys or to pass on mirrored input.
//
// The portal trusts nothing that is said here: see static/js/channel.js for what it does with it.
"use strict";

(() => {
  const portal = document.currentScript.dataset.portal;
  const LOOK_EVERY = 100;
  // So many looks apart.
  const MUTE_EVERY = 10;
  // No lighter than this is black, of 255; one that stays so is shown after this time.
  const DARKEST = 8;
  const BLACK_MS = 2000;
  // A tap of Ctrl, and two of them in a row.
  const TAP_MS = 400;
  const TWICE_MS = 600;
  const HEARTBEAT_MS = 100;
  const LONGEST_TEXT = 16384;
  const above = window.parent;
  if (above === window) return;
  // The client sends its figures to `window.parent` for pages of its own around it. The portal's page is none: in the place of that name stands what
  // the client finds without a frame, itself. What is said to the portal goes by `tell` alone.
  window.parent = window;

  const tell = (type, rest = {}) => above.postMessage({ tclone: type, ...rest }, portal);
  const send = (text) => {
    const transport = window.selkiesTransport;
    if (transport && transport.readyState === WebSocket.OPEN) transport.send(text);
  };

  // The picture: the viewer covers its canvas with a status line until something is decoded, which may be before it is drawn. Until then the portal
  // has a still picture in this place: black would flash up between the two.
  const SCREENS = ["videoStream", "stream", "videoCanvas"];
  const probe = Object.assign(document.createElement("canvas"), { width: 16, height: 10 }).getContext("2d", { willReadFrequently: true });
  const isBlank = () => {
    const screen = SCREENS.map((id) => document.getElementById(id)).find((element) => element?.checkVisibility());
    if (!screen) return false;
    try {
      probe.clearRect(0, 0, 16, 10);
      probe.drawImage(screen, 0, 0, 16, 10);
    } catch {
      return true; // it has no size yet
    }
    return probe.getImageData(0, 0, 16, 10).data.every((value, index) => index % 4 === 3 || value <= DARKEST);
  };
  // What was drawn is on the screen two frames later. Where nobody can see it browsers have none.
  const onScreen = () => Promise.race([
    new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
    new Promise((done) => setTimeout(done, LOOK_EVERY * 3)),
  ]);

  // The client's own way to be silent.
  let sounds = true;
  let ticks = 0;
  const setSound = () => window.postMessage({ type: "setMute", value: !sounds }, location.origin);

  let decodedAt = null;
  let shown = false;
  let poor = false;
  setInterval(() => {
    const status = document.getElementById("status-display");
    const decoded = status !== null && status.classList.contains("hidden") && Boolean(window.selkiesTransport);
    decodedAt = decoded ? decodedAt ?? performance.now() : null;
    // A screen may really be black.
    const now = decoded && (shown || !isBlank() || performance.now() - decodedAt > BLACK_MS);
    if (now && !shown) onScreen().then(() => shown && tell("picture"));
    if (shown && !now) tell("waiting");
    shown = now;
    const bad = window.stream_client?.connection === "poor";
    if (bad !== poor) tell("quality", { poor: bad });
    poor = bad;
    // Asked for again and again: what plays may come about at any time.
    if (!sounds && (ticks += 1) % MUTE_EVERY === 0) setSound();
    // Its own shortcuts (Ctrl+Shift+M, F, X, G) would take keys away from the programs on the desktop.
    if (window.webrtcInput?.shortcutsEnabled) window.webrtcInput.setShortcutsEnabled(false);
  }, LOOK_EVERY);

  // The leader: Ctrl tapped twice. Both taps reach the desktop like any others; nothing is taken from it.
  let downAt = 0;
  let clean = false;
  let lastTap = -Infinity;
  const onKey = (event) => {
    if (!event.isTrusted) return;
    if (event.type === "keydown") {
      if (event.key === "Control" && !event.repeat) {
        downAt = event.timeStamp;
        clean = !(event.altKey || event.shiftKey || event.metaKey);
      } else if (event.key !== "Control") {
        clean = false;
        lastTap = -Infinity;
      }
      return;
    }
    if (event.key !== "Control") return;
    if (!clean || event.timeStamp - downAt > TAP_MS) {
      lastTap = -Infinity;
      return;
    }
    if (event.timeStamp - lastTap < TWICE_MS) {
      lastTap = -Infinity;
      tell("leader");
    } else lastTap = event.timeStamp;
  };
  window.addEventListener("keydown", onKey, true);
  window.addEventListener("keyup", onKey, true);
  window.addEventListener("pointerdown", () => (lastTap = -Infinity), true);

  // Orders. Keys that were passed on are held as long as this page says so: the server lets go of keys without a heartbeat.
  const held = new Set();
  let beating = null;
  const beat = () => {
    if (held.size) send(`kh,${[...held].join(",")}`);
    else {
      clearInterval(beating);
      beating = null;
    }
  };
  const isText = (text) => typeof text === "string" && text.length <= LONGEST_TEXT;
  const orders = {
    release() {
      window.webrtcInput?.resetKeyboard?.();
      held.clear();
      send("kr");
    },
    key({ keysym, down }) {
      if (!Number.isInteger(keysym)) return;
      if (down) held.add(keysym);
      else held.delete(keysym);
      beating ??= setInterval(beat, HEARTBEAT_MS);
      send(`${down ? "kd" : "ku"},${keysym}`);
    },
    sound({ on }) {
      if (sounds === (on === true)) return;
      sounds = on === true;
      setSound();
    },
    text({ text }) {
      if (isText(text)) send(`co,end,${text}`);
    },
    clipboard({ text }) {
      if (isText(text)) send(`cw,${btoa(String.fromCharCode(...new TextEncoder().encode(text)))}`);
    },
    point({ x, y, mask, wheel = 0 }) {
      if ([x, y, mask, wheel].every(Number.isInteger)) send(`m,${x},${y},${mask},${wheel}`);
    },
  };
  window.addEventListener("message", (event) => {
    if (event.origin !== portal || event.source !== above) return;
    // The client listens, too, and would write a line to the console for each message that it does not know.
    event.stopImmediatePropagation();
    const order = event.data?.tclone;
    if (Object.hasOwn(orders, order)) orders[order](event.data);
  });
  tell("hello");
})();
