// One's own password.

import { changePassword } from "./account_api.js";
import { fillPart } from "./account_parts.js";
import { field, submitButton } from "./dialog.js";
import { h, prose } from "./dom.js";
import { Fault, clearFaults, faultyField, markFault } from "./faults.js";
import { account } from "./strings_account.js";
import { toast } from "./toast.js";

const input = (autocomplete) => h("input", { type: "password", autocomplete, required: true });

export function passwordPart(section, known) {
  if (known.external) {
    fillPart(section, { title: account.password, note: account.externalNote });
    return;
  }
  const current = input("current-password");
  const fresh = input("new-password");
  const repeated = input("new-password");
  const error = h("p", { className: "error", attributes: { role: "alert" }, hidden: true });
  const user = h("input", { type: "text", autocomplete: "username", value: known.user, hidden: true, readOnly: true });
  const fields = [user, field(account.current, current), field(account.fresh, fresh), field(account.again, repeated)];
  const form = h("form", { noValidate: true, className: "stack" }, ...fields, error, submitButton(account.change));
  const tell = (failure) => {
    error.replaceChildren(...prose(failure.message));
    error.hidden = false;
    const faulty = faultyField(failure, { password: current, new_password: fresh });
    if (faulty) markFault(faulty, error);
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    error.hidden = true;
    clearFaults(form);
    if (fresh.value !== repeated.value) {
      tell(new Fault(account.different, repeated));
      return;
    }
    try {
      await changePassword(current.value, fresh.value);
    } catch (failure) {
      tell(failure.code === "denied" ? new Fault(account.wrong, current) : failure);
      return;
    }
    form.reset();
    toast(account.changed, account.changedNote);
  });
  fillPart(section, { title: account.password, note: account.passwordNote }, form);
}
