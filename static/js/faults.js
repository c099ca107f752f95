// What is wrong in a form, shown at the field that is at fault.

/** A refusal of this page itself: its message, and the field it is about. */
export class Fault extends Error {
  constructor(message, input = null) {
    super(message);
    this.input = input;
  }
}

/** The field that a refusal is about: the page's own names it, the portal's has the name of a key in `fields`. */
export const faultyField = (failure, fields = {}) => failure.input ?? fields[failure.field] ?? null;

/** Mark a field, have the message read with it and put the keyboard into it; the mark goes when the field is changed. */
export function markFault(input, message) {
  message.id ||= `fault-of-${input.id || input.name}`;
  const hint = input.getAttribute("aria-describedby");
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-describedby", [message.id, hint].filter(Boolean).join(" "));
  input.focus();
  const clear = () => {
    input.removeAttribute("aria-invalid");
    if (hint) input.setAttribute("aria-describedby", hint);
    else input.removeAttribute("aria-describedby");
    input.removeEventListener("input", clear);
    input.removeEventListener("fault-over", clear);
  };
  input.addEventListener("input", clear);
  input.addEventListener("fault-over", clear);
}

/** Before the next attempt: no field of `form` is at fault any more. */
export function clearFaults(form) {
  for (const input of form.querySelectorAll("[aria-invalid]")) input.dispatchEvent(new Event("fault-over"));
}
