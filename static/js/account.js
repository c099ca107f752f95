// The account page: what one has and may have, password, second factor, sessions, API tokens.

import { me } from "./account_api.js";
import { factorPart } from "./account_factor.js";
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
  // Who has to set up a second factor first can do nothing else.
  const enrolling = known.second_factor_required && !known.second_factor && !known.external;
  for (const id of ["quota", "password", "sessions", "tokens"]) document.getElementById(id).hidden = enrolling;
  factorPart(document.getElementById("factor"), known, attempt, () => (enrolling ? location.reload() : attempt(fill)));
  if (enrolling) return;
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
  if (filled && !document.getElementById("quota").hidden && now !== shown) attempt(() => quotaPart(document.getElementById("quota")));
  shown = now;
});
attempt(fill).then(() => (filled = true));
