// The account page: password, sessions, API tokens.

import { me } from "./account_api.js";
import { passwordPart } from "./account_password.js";
import { sessionsPart } from "./account_sessions.js";
import { tokensPart } from "./account_tokens.js";
import { startPage } from "./shell.js";
import { account } from "./strings_account.js";
import { toast } from "./toast.js";

/** Run `work`; a failure is told, and nothing else happens. */
async function attempt(work) {
  try {
    await work();
  } catch (failure) {
    toast(account.failed, failure.message, { kind: "error" });
  }
}

async function fill() {
  const known = await me();
  document.getElementById("who").textContent = account.signedInAs(known.user, known.role);
  passwordPart(document.getElementById("password"), known);
  await sessionsPart(document.getElementById("sessions"), attempt);
  await tokensPart(document.getElementById("tokens"), known, attempt);
}

startPage(() => {});
attempt(fill);
