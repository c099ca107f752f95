import { enterByProvider } from "./account_api.js";
import { ApiError, keepKey, login, pageAfterLogin } from "./api.js";
import { field } from "./dialog.js";
import { h } from "./dom.js";
import { account, login as words } from "./strings.js";

const form = document.getElementById("form");
const password = document.getElementById("password");
const submit = document.getElementById("submit");
const error = document.getElementById("error");
// The fields for a password of one's own, once they are asked for.
let fresh = null;

function show(message) {
  error.textContent = message;
  error.hidden = false;
  password.setAttribute("aria-invalid", "true");
}

/** The password was right, and was made by somebody else: the next step is one of the user's own. */
function askForOwn() {
  const input = () => h("input", { type: "password", autocomplete: "new-password", required: true });
  fresh ??= { chosen: input(), again: input() };
  const fields = [field(account.fresh, fresh.chosen), field(account.again, fresh.again)];
  error.before(h("p", { className: "hint", textContent: account.oneTime }), ...fields);
  submit.disabled = false;
  submit.textContent = words.submit;
  fresh.chosen.focus();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!password.value) {
    show(words.noPassword);
    password.focus();
    return;
  }
  if (fresh && fresh.chosen.value !== fresh.again.value) {
    show(account.different);
    fresh.chosen.focus();
    return;
  }
  submit.disabled = true;
  submit.textContent = words.busy;
  error.hidden = true;
  try {
    const user = form.elements.user.value.trim();
    const { key } = await login(user, password.value, fresh?.chosen.value);
    keepKey(key, user);
    location.replace(pageAfterLogin());
    return;
  } catch (failure) {
    if (failure.code === "new_password" && !fresh) {
      askForOwn();
      return;
    }
    const denied = failure instanceof ApiError && failure.code === "denied";
    show(denied ? words.wrong : failure.message);
    password.select();
    password.focus();
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
    show(failure.message);
    submit.disabled = false;
  }
}

if (location.hash === "#provider") comeBack();
