// One's own second factor: an app that shows codes, and recovery codes for the day when it is lost.

import { beginFactor, newRecoveryCodes, proveFactor, removeFactor } from "./account_api.js";
import { actions, fillPart, formDialog, showOnce } from "./account_parts.js";
import { codeInput } from "./confirm.js";
import { dateTime } from "./dates.js";
import { field } from "./dialog.js";
import { button, h, qrCode } from "./dom.js";
import { Fault } from "./faults.js";
import { factor as words } from "./strings_account.js";

/** `redo`: show the page's parts anew, with what has changed. */
export function factorPart(section, known, attempt, redo) {
  section.hidden = known.external;
  if (known.external) return;
  const has = known.second_factor;
  const note = known.second_factor_required && !has ? words.required : words.note;
  if (!has) {
    fillPart(section, { title: words.title, note }, button(words.setUp, { kind: "primary", on: () => attempt(() => openSetUp(redo)) }));
    return;
  }
  const state = h("p", { textContent: words.state(dateTime(has.since), has.recovery_codes) });
  const fresh = button(words.newCodes, { on: () => openNewCodes(redo) });
  const remove = button(words.remove, { kind: "danger-hover", on: () => openRemove(redo) });
  fillPart(section, { title: words.title, note }, state, actions(fresh, remove));
}

/** The secret in groups of four, as it is typed where no camera is. */
const inGroups = (secret) => secret.match(/.{1,4}/g).join(" ");

async function openSetUp(redo) {
  const begun = await beginFactor();
  const code = codeInput();
  code.inputMode = "numeric";
  const picture = h("div", { className: "qr" }, qrCode(begun.picture, words.picture));
  const secret = h("p", { className: "secret-text mono", textContent: inGroups(begun.secret) });
  const byHand = h("details", {}, h("summary", { textContent: words.byHand }), secret);
  const dialog = formDialog(words.setUpTitle, [h("p", { textContent: words.scan }), picture, byHand, field(words.code, code, words.codeHint)], words.turnOn, async () => {
    if (!code.value.trim()) throw new Fault(words.noCode, code);
    const { recovery_codes: codes } = await proveFactor(code.value);
    showCodes(dialog, codes);
    dialog.onClose = redo;
  }, { named: { code } });
  code.focus();
}

function openNewCodes(redo) {
  const dialog = formDialog(words.newCodesTitle, [h("p", { textContent: words.askNewCodes })], words.newCodes, async () => {
    showCodes(dialog, (await newRecoveryCodes()).recovery_codes);
    dialog.onClose = redo;
  });
}

function openRemove(redo) {
  const dialog = formDialog(words.removeTitle, [h("p", { textContent: words.askRemove })], words.remove, async () => {
    await removeFactor();
    dialog.close();
    redo();
  }, { kind: "danger" });
}

function showCodes(dialog, codes) {
  dialog.title.textContent = words.codes;
  showOnce(dialog, words.once, codes.join("\n"));
}
