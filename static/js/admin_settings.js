// Settings for all users.

import { fillPart } from "./account_parts.js";
import { setSettings, settings as now } from "./admin_api.js";
import { field, submitButton } from "./dialog.js";
import { h } from "./dom.js";
import { Fault, clearFaults, faultyField, markFault } from "./faults.js";
import { idleSelect, lifetimeSelect, secondsOf } from "./lifetimes.js";
import { snippet } from "./snippets.js";
import { settings as words } from "./strings_admin.js";

const GIB = 1024 ** 3;
/** The unit of what need not be whole. */
export const PART = null;

/** A field for a limit: empty is none. */
export const limitInput = (value, unit = 1) => h("input", { type: "text", inputMode: "decimal", autocomplete: "off", value: value === null ? "" : String(value / (unit ?? 1)) });

/** What such a field says, in whole units; null when it is empty. Throws with what is wrong. */
export function limitOf(input, label, unit = 1) {
  const text = input.value.trim();
  if (!text) return null;
  const value = Number(text);
  if (!Number.isFinite(value) || value < 0 || (unit === 1 && !Number.isInteger(value))) throw new Fault(words.notNumber(label), input);
  return unit === PART ? value : Math.round(value * unit);
}

export async function settingsPart(section) {
  const set = await now();
  const idle = idleSelect(set.idle_seconds);
  const whole = lifetimeSelect(set.lifetime_seconds);
  const limits = [
    ["user_workspaces", words.userWorkspaces, 1],
    ["all_workspaces", words.allWorkspaces, 1],
    ["user_memory", words.userMemory, GIB, words.memoryHint],
    ["all_memory", words.allMemory, GIB, words.memoryHint],
    ["user_disk", words.userDisk, GIB, words.diskHint],
    ["all_disk", words.allDisk, GIB, words.diskHint],
    ["user_cpus", words.userCpus, PART, words.cpusHint],
    ["all_cpus", words.allCpus, PART, words.cpusHint],
  ].map(([name, label, unit, hint = ""]) => ({ name, label, unit, hint, input: limitInput(set[name], unit) }));
  const factor = h("input", { type: "checkbox", checked: set.second_factor });
  const factorHint = h("p", { className: "hint", id: "second-factor-hint", textContent: words.secondFactorHint });
  factor.setAttribute("aria-describedby", factorHint.id);
  const wanted = () => ({ second_factor: factor.checked, idle_seconds: secondsOf(idle), lifetime_seconds: secondsOf(whole), ...Object.fromEntries(limits.map(({ name, label, unit, input }) => [name, limitOf(input, label, unit)])) });
  const described = () => {
    try {
      return wanted();
    } catch {
      return set;
    }
  };
  const same = snippet(() => ({ method: "PUT", path: "/api/v1/settings", body: described() }));
  const error = h("p", { className: "error", attributes: { role: "alert" }, hidden: true });
  const saved = h("p", { className: "saved", attributes: { role: "status" } });
  const save = submitButton(words.save);
  const pair = (...fields) => h("div", { className: "pair" }, ...fields);
  const limitField = ({ label, hint, input }) => field(label, input, hint);
  const form = h(
    "form",
    { noValidate: true, className: "stack wide" },
    h("h3", { textContent: words.lifetimes }),
    pair(field(words.idle, idle, words.idleHint), field(words.whole, whole)),
    h("h3", { textContent: words.quotas }),
    h("p", { className: "hint", textContent: words.quotasNote }),
    pair(limitField(limits[0]), limitField(limits[1])),
    pair(limitField(limits[2]), limitField(limits[3])),
    pair(limitField(limits[4]), limitField(limits[5])),
    pair(limitField(limits[6]), limitField(limits[7])),
    h("h3", { textContent: words.logins }),
    h("div", { className: "checks" }, h("label", { className: "check" }, factor, h("span", { textContent: words.secondFactor })), factorHint),
    error,
    h("div", { className: "save-row" }, save, saved),
    same.element,
  );
  form.addEventListener("input", () => {
    saved.textContent = "";
    same.refresh();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    error.hidden = true;
    clearFaults(form);
    save.disabled = true;
    saved.textContent = words.saving;
    try {
      await setSettings(wanted());
      saved.textContent = words.saved;
    } catch (failure) {
      saved.textContent = "";
      error.textContent = failure.message;
      error.hidden = false;
      const input = faultyField(failure, Object.fromEntries(limits.map((limit) => [limit.name, limit.input])));
      if (input) markFault(input, error);
    }
    save.disabled = false;
  });
  fillPart(section, words, form);
}
