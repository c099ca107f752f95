// What this page knows, kept up to date by its one WebSocket.

import { learnWhoAmI, sessionKey, toEnrolment, toLogin } from "./api.js";

const FIRST_RETRY = 400;
const LONGEST_RETRY = 8000;
const ACTIVE_EVERY = 60_000;

/** Events: "change" (anything), and one named after each message (`fork`, `gone`, `workspace`, `build`, …) with its body as `detail`. */
class Store extends EventTarget {
  workspaces = new Map();
  operations = new Map();
  builds = new Map();
  // Who has control of a workspace, and how long it lives; nothing for those that nobody has, and that live on.
  leases = new Map();
  lives = new Map();
  // How many others look at a desktop: by share links, and admins.
  watched = new Map();
  engine = "unknown";
  engineMessage = "";
  connection = "connecting";
  loaded = false;
  #seq = null;
  #retry = FIRST_RETRY;
  #socket = null;
  #timer = null;
  #lastActive = 0;

  start() {
    this.#connect();
    learnWhoAmI().then(() => this.#changed());
    const now = () => this.#reconnectNow();
    window.addEventListener("online", now);
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && now());
    setInterval(() => this.#tellActive(), 5000);
  }

  #connect() {
    const key = sessionKey();
    if (!key) {
      toLogin();
      return;
    }
    const socket = new WebSocket(`wss://${location.host}/ws`);
    this.#socket = socket;
    socket.addEventListener("open", () => socket.send(JSON.stringify({ type: "hello", key, since: this.#seq })));
    socket.addEventListener("message", (message) => this.#receive(JSON.parse(message.data)));
    socket.addEventListener("close", () => this.#lost());
  }

  #lost() {
    this.#setConnection("reconnecting");
    const wait = this.#retry * (0.5 + Math.random());
    this.#retry = Math.min(this.#retry * 2, LONGEST_RETRY);
    this.#timer = setTimeout(() => this.#connect(), wait);
  }

  #reconnectNow() {
    if (this.connection !== "reconnecting" || this.#socket.readyState !== WebSocket.CLOSED) return;
    clearTimeout(this.#timer);
    this.#connect();
  }

  #setConnection(state) {
    if (this.connection === state) return;
    this.connection = state;
    this.#changed();
  }

  #receive(event) {
    if (event.type === "ended") {
      toLogin();
      return;
    }
    if (event.type === "error") {
      // Nothing was opened; the next try comes later each time.
      if (event.error?.code === "enrol") toEnrolment();
      return;
    }
    this.#retry = FIRST_RETRY;
    this.connection = "live";
    if (Number.isInteger(event.seq)) this.#seq = event.seq;
    this.#apply(event);
    this.dispatchEvent(new CustomEvent(event.type, { detail: event }));
    this.#changed();
  }

  #apply(event) {
    const { type, workspace, data } = event;
    if (type === "snapshot") this.#takeSnapshot(event);
    else if (type === "workspace") this.#put(data);
    else if (type === "gone") this.#drop(workspace);
    else if (type === "progress") this.#progress(workspace, data);
    else if (type === "fork") this.operations.delete(workspace);
    else if (type === "build") this.#build(event);
    else if (type === "lease") setOrDelete(this.leases, workspace, data);
    else if (type === "life") setOrDelete(this.lives, workspace, data);
    else if (type === "watched") setOrDelete(this.watched, workspace, data);
    else if (type === "engine") [this.engine, this.engineMessage] = [event.state, event.message];
  }

  #takeSnapshot(event) {
    this.workspaces = new Map(event.workspaces.map((item) => [item.id, shown(item)]));
    const received = performance.now();
    this.operations = new Map(
      Object.entries(event.operations).map(([id, operation]) => [id, { ...operation, phases: operation.phases.map((phase) => ({ ...phase, received })) }]),
    );
    this.builds = new Map(event.builds.map((build) => [build.image, { ...build, began: received - (build.elapsed_ms ?? 0) }]));
    this.leases = new Map(Object.entries(event.facts?.lease ?? {}));
    this.lives = new Map(Object.entries(event.facts?.life ?? {}));
    this.watched = new Map(Object.entries(event.facts?.watched ?? {}));
    this.engine = event.engine;
    this.engineMessage = event.message;
    this.loaded = true;
  }

  #put(workspace) {
    const operation = this.operations.get(workspace.id);
    const launching = ["created", "starting"].includes(workspace.state);
    if (operation && (operation.operation === "launch" ? !launching : workspace.state !== "forking")) this.operations.delete(workspace.id);
    this.workspaces.set(workspace.id, shown(workspace));
  }

  #drop(id) {
    this.workspaces.delete(id);
    for (const facts of [this.operations, this.leases, this.lives, this.watched]) facts.delete(id);
  }

  /** `began`: when the build did, by this page's clock. */
  #build(event) {
    if (event.done) this.builds.delete(event.image);
    else this.builds.set(event.image, { ...event, began: Number.isFinite(event.elapsed_ms) ? performance.now() - event.elapsed_ms : this.builds.get(event.image)?.began ?? performance.now() });
  }

  #progress(id, data) {
    let operation = this.operations.get(id);
    if (operation?.operation !== data.operation) {
      operation = { operation: data.operation, phases: [] };
      this.operations.set(id, operation);
    }
    operation.phases.push({ ...data, received: performance.now() });
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }

  /** Tell the portal that somebody is here: the page or a desktop in it has the focus. An open tab alone does not keep a session. */
  #tellActive() {
    const now = Date.now();
    if (this.connection !== "live" || document.visibilityState !== "visible" || !document.hasFocus() || now - this.#lastActive < ACTIVE_EVERY) return;
    this.#lastActive = now;
    this.#socket.send(JSON.stringify({ type: "active" }));
  }

  /** Workspaces in the order of the tree: each source, then its branches. `[{workspace, depth}]` */
  ordered() {
    const children = new Map();
    for (const workspace of this.workspaces.values()) {
      const parent = this.workspaces.has(workspace.parent) ? workspace.parent : null;
      children.set(parent, [...(children.get(parent) ?? []), workspace]);
    }
    const number = (workspace) => Number(workspace.id.slice(3)) || 0;
    const found = [];
    const visit = (parent, depth) => {
      for (const workspace of (children.get(parent) ?? []).sort((a, b) => number(a) - number(b))) {
        found.push({ workspace, depth });
        // An engine that names a workspace as its own ancestor must not hang the page.
        if (depth < 64) visit(workspace.id, depth + 1);
      }
    };
    visit(null, 0);
    return found;
  }
}

/** For pages one that stands still is in a state of its own: there is no stream of it, and no fork. */
function shown(workspace) {
  return workspace.paused && workspace.state === "ready" ? { ...workspace, state: "paused" } : workspace;
}

function setOrDelete(map, key, value) {
  if (value === null) map.delete(key);
  else map.set(key, value);
}

export const store = new Store();
