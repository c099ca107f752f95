import { ApiError, keepKey, login, pageAfterLogin } from "./api.js";
import { login as words } from "./strings.js";

const form = document.getElementById("form");
const password = document.getElementById("password");
const submit = document.getElementById("submit");
const error = document.getElementById("error");

function show(message) {
  error.textContent = message;
  error.hidden = false;
  password.setAttribute("aria-invalid", "true");
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!password.value) {
    show(words.noPassword);
    password.focus();
    return;
  }
  submit.disabled = true;
  submit.textContent = words.busy;
  error.hidden = true;
  try {
    const user = form.elements.user.value.trim();
    const { key } = await login(user, password.value);
    keepKey(key, user);
    location.replace(pageAfterLogin());
    return;
  } catch (failure) {
    const denied = failure instanceof ApiError && failure.code === "denied";
    show(denied ? words.wrong : failure.message);
    password.select();
    password.focus();
  }
  submit.disabled = false;
  submit.textContent = words.submit;
});
