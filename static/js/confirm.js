// Asking again who it is, before what decides about logins and rights: whoever finds this browser open must not change those.

import { nextIsHere, request } from "./api.js";
import { Dialog, field, submitButton } from "./dialog.js";
import { button, h } from "./dom.js";
import { Fault } from "./faults.js";
import { common } from "./strings.js";
import { confirm as words } from "./strings_account.js";

/** What `work`, which sends one request, answers. When the portal wants to know first who it is, the person is asked, and the request is sent again. Throws what
 * `work` throws, and when the person does not say. */
export async function confirmed(work) {
  try {
    return await work();
  } catch (failure) {
    if (failure.code !== "confirm") throw failure;
  }
  if (!(await ask(await request("GET", "/api/v1/me")))) throw new Fault(words.notDone);
  return work();
}

/** Whether the person has shown who it is. */
function ask(known) {
  const dialog = new Dialog(words.title, { className: "narrow" });
  return new Promise((answer) => {
    let shown = false;
    dialog.onClose = () => answer(shown);
    const done = () => {
      shown = true;
      dialog.close();
    };
    if (known.external) askProvider(dialog);
    else askPassword(dialog, known, done);
    dialog.show();
    dialog.body.querySelector("input:not([hidden])")?.focus();
  });
}

function askPassword(dialog, known, done) {
  const user = h("input", { type: "text", autocomplete: "username", value: known.user, hidden: true, readOnly: true });
  const password = h("input", { type: "password", autocomplete: "current-password", required: true });
  const fields = [h("p", { textContent: words.note }), user, field(words.password, password)];
  const code = codeInput();
  if (known.second_factor) fields.push(field(words.code, code, words.codeHint));
  const submit = submitButton(words.submit);
  dialog.step(fields, [button(common.cancel, { on: () => dialog.close() }), submit]);
  dialog.onSubmit = async () => {
    if (submit.disabled) return;
    submit.disabled = true;
    dialog.hideError();
    try {
      if (!password.value) throw new Fault(words.noPassword, password);
      if (known.second_factor && !code.value.trim()) throw new Fault(words.noCode, code);
      await request("POST", "/api/v1/me/confirm", { password: password.value, code: known.second_factor ? code.value : null });
      done();
    } catch (failure) {
      dialog.showError(failure.code === "denied" ? new Fault(words.wrong, password) : failure, { code });
    }
    submit.disabled = false;
  };
}

/** Such a person shows who it is where it has its password, and comes back to this page. */
function askProvider(dialog) {
  const go = h("a", { className: "button primary", href: "/login/oidc?again", textContent: words.provider });
  go.addEventListener("click", nextIsHere);
  dialog.step([h("p", { textContent: words.providerNote })], [button(common.cancel, { on: () => dialog.close() }), go]);
}

/** A field for a code of an app, or a recovery code. Browsers and phones know what it is for. */
export const codeInput = () => h("input", { type: "text", autocomplete: "one-time-code", autocapitalize: "none", spellcheck: false, maxLength: 64, required: true, className: "mono" });
