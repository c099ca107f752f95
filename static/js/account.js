// The account page: what one has and may have, password, sessions, API tokens.

import { me } from "./account_api.js";
import { passwordPart } from "./account_password.js";
import { sessionsPart } from "./account_sessions.js";
import { quotaPart } from "./quota.js";
import { tokensPart } from "./account_tokens.js";
import { startPage } from "./shell.js";
import { store } from "./store.js";
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
  await quotaPart(document.getElementById("quota"));
  passwordPart(document.getElementById("password"), known);
  await sessionsPart(document.getElementById("sessions"), attempt);
  await tokensPart(document.getElementById("tokens"), known, attempt);
}

// Which workspaces there are, and so what is used, as far as it has been shown.
let shown = null;
let filled = false;

startPage(() => {
  const now = [...store.workspaces.keys()].sort().join();
  if (filled && now !== shown) attempt(() => quotaPart(document.getElementById("quota")));
  shown = now;
});
attempt(fill).then(() => (filled = true));
