// What one has and may have: workspaces, and the sums of their limits for memory, disk and processors.

import { quota } from "./account_api.js";
import { fillPart } from "./account_parts.js";
import { h } from "./dom.js";
import { setSize } from "./format.js";
import { quotas as words } from "./strings_account.js";

const SHOWN = { workspaces: String, memory: setSize, disk: setSize, cpus: String };

/** "2 of 5", or what there is when there is no limit. */
const figure = (name, use, limit) => (limit === null ? words.unlimited(SHOWN[name](use)) : words.of(SHOWN[name](use), SHOWN[name](limit)));

/** A line for each quota, with a bar where there is a limit. */
function lines({ use, limits }) {
  const parts = Object.keys(SHOWN).flatMap((name) => {
    const limit = limits[name];
    const bar = limit === null ? "" : h("meter", { min: 0, max: Math.max(limit, 1), value: Math.min(use[name], limit), high: limit * 0.8, optimum: 0, aria: { label: words.names[name] } });
    return [h("dt", { textContent: words.names[name] }), h("dd", {}, h("span", { textContent: figure(name, use[name], limit) }), bar)];
  });
  return h("dl", { className: "quotas" }, ...parts);
}

export async function quotaPart(section) {
  const { user, all } = await quota();
  const everybodys = all ? [h("h3", { textContent: words.all }), lines(all)] : [];
  fillPart(section, { title: words.title, note: all ? words.adminNote : words.note }, lines(user), ...everybodys);
}

/** A line for the dialogs that make workspaces: how much of each limit is taken. Empty where nothing is limited, or nothing can be found out. */
export function quotaLine() {
  const line = h("p", { className: "hint quota-line", attributes: { role: "status" }, hidden: true });
  quota().then(({ user: { use, limits } }) => {
    const parts = Object.keys(SHOWN).filter((name) => limits[name] !== null).map((name) => words.short[name](figure(name, use[name], limits[name])));
    line.textContent = parts.length ? words.line(parts.join(", ")) : "";
    line.hidden = !parts.length;
    // Whoever cannot read it learns of a limit by the refusal.
  }, () => {});
  return line;
}
