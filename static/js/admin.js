// The admins' pages: one part at a time, with links to the others.

import { me } from "./account_api.js";
import { auditPart } from "./admin_audit.js";
import { settingsPart } from "./admin_settings.js";
import { usersPart } from "./admin_users.js";
import { workspacesPart } from "./admin_workspaces.js";
import { h } from "./dom.js";
import { startPage } from "./shell.js";
import { account } from "./strings_account.js";
import { admin as words } from "./strings_admin.js";
import { toast } from "./toast.js";

const PARTS = { workspaces: workspacesPart, users: usersPart, settings: settingsPart, audit: auditPart };

/** Run `work`; a failure is told, and nothing else happens. */
async function attempt(work) {
  try {
    await work();
  } catch (failure) {
    toast(account.failed, failure.message, { kind: "error" });
  }
}

const { part } = document.body.dataset;
const links = words.parts.map(([name, label]) => h("a", { href: `/admin/${name}`, textContent: label, aria: name === part ? { current: "page" } : {} }));
document.getElementById("parts").append(...links);
document.title = words.title(Object.fromEntries(words.parts)[part]);

const changes = new EventTarget();
startPage(() => changes.dispatchEvent(new Event("change")));
attempt(async () => PARTS[part](document.getElementById("part"), await me(), attempt, changes));
