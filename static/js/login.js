import { enterByProvider } from "./account_api.js";
import { ApiError, keepKey, login, pageAfterLogin } from "./api.js";
import { codeInput } from "./confirm.js";
import { field } from "./dialog.js";
import { h, prose } from "./dom.js";
import { Fault, clearFaults, faultyField, markFault } from "./faults.js";
import { login as words } from "./strings.js";
import { account } from "./strings_account.js";

const form = document.getElementById("form");
const user = document.getElementById("user");
const password = document.getElementById("password");
const submit = document.getElementById("submit");
const error = document.getElementById("error");
// The fields for a password of one's own, once they are asked for.
let fresh = null;
// The field for a code of the second factor, once it is asked for.
let code = null;

/** Say what went wrong, at the field that it is about. */
function show(failure) {
  error.replaceChildren(...prose(failure.message));
  error.hidden = false;
  const input = faultyField(failure, { user, password, new_password: fresh?.chosen, code });
  if (input) markFault(input, error);
}

/** The password was right, and was made by somebody else: the next step is one of the user's own. */
function askForOwn() {
  const input = () => h("input", { type: "password", autocomplete: "new-password", required: true });
  fresh ??= { chosen: input(), again: input() };
  const fields = [field(account.fresh, fresh.chosen), field(account.again, fresh.again)];
  nextStep(account.oneTime, fields, fresh.chosen);
}

/** The password was right, and is half of what lets this user in. */
function askForCode() {
  code = codeInput();
  nextStep(words.secondFactor, [field(words.code, code)], code);
}

/** Further fields below those that were right, and what they are for. */
function nextStep(note, fields, first) {
  error.before(h("p", { className: "hint", textContent: note }), ...fields);
  submit.disabled = false;
  submit.textContent = words.submit;
  first.focus();
}

/** What is not filled in as it must be, or null. */
function missing() {
  if (!user.value.trim()) return new Fault(words.noUser, user);
  if (!password.value) return new Fault(words.noPassword, password);
  if (fresh && !fresh.chosen.value) return new Fault(words.noPassword, fresh.chosen);
  if (fresh && fresh.chosen.value !== fresh.again.value) return new Fault(account.different, fresh.again);
  if (code && !code.value.trim()) return new Fault(words.noCode, code);
  return null;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearFaults(form);
  const fault = missing();
  if (fault) {
    show(fault);
    return;
  }
  submit.disabled = true;
  submit.textContent = words.busy;
  error.hidden = true;
  try {
    const name = user.value.trim();
    const { key } = await login(name, password.value, { fresh: fresh?.chosen.value, code: code?.value });
    keepKey(key, name);
    location.replace(pageAfterLogin());
    return;
  } catch (failure) {
    if (failure.code === "new_password" && !fresh) {
      askForOwn();
      return;
    }
    if (failure.code === "second_factor" && !code) {
      askForCode();
      return;
    }
    const denied = failure instanceof ApiError && failure.code === "denied";
    show(denied ? new Fault(words.wrong, password) : failure);
    if (denied) password.select();
    if (failure.code === "wrong_code") code.select();
  }
  submit.disabled = false;
  submit.textContent = words.submit;
});

/** Back from the identity provider: this browser's cookie says who it is, and the portal gives it a session. */
async function comeBack() {
  history.replaceState(null, "", "/login");
  submit.disabled = true;
  try {
    const { key, user } = await enterByProvider();
    keepKey(key, user);
    location.replace(pageAfterLogin());
  } catch (failure) {
    show(failure);
    submit.disabled = false;
  }
}

if (location.hash === "#provider") comeBack();
