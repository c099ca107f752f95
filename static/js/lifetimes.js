// How long workspaces may live, as lists to choose from.

import { h } from "./dom.js";
import { span } from "./format.js";
import { control as words } from "./strings.js";

const HOUR = 3600;
const DAY = 24 * HOUR;
const IDLE = [null, HOUR / 4, HOUR, 8 * HOUR, DAY, 7 * DAY];
const LIFETIME = [null, HOUR, 8 * HOUR, DAY, 7 * DAY, 30 * DAY];

function select(name, values, chosen) {
  const known = values.includes(chosen) ? values : [...values, chosen];
  const options = known.map((value) => h("option", { value: String(value), textContent: value === null ? words.never : span(value), selected: value === chosen }));
  return h("select", { name }, ...options);
}

/** Lists of seconds, null is never; one that is `chosen` and not among them is added. */
export const idleSelect = (chosen) => select("idle", IDLE, chosen);
export const lifetimeSelect = (chosen) => select("lifetime", LIFETIME, chosen);

/** Seconds, or null: never. */
export const secondsOf = (list) => (list.value === "null" ? null : Number(list.value));
