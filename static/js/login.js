import { ApiError, keepKey, login, pageAfterLogin } from "./api.js";

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
    show("Enter the password.");
    password.focus();
    return;
  }
  submit.disabled = true;
  submit.textContent = "Logging in…";
  error.hidden = true;
  try {
    const { key } = await login(form.elements.user.value.trim(), password.value);
    keepKey(key);
    location.replace(pageAfterLogin());
    return;
  } catch (failure) {
    const denied = failure instanceof ApiError && failure.code === "denied";
    show(denied ? "User or password is wrong." : failure.message);
    password.select();
    password.focus();
  }
  submit.disabled = false;
  submit.textContent = "Log in";
});
