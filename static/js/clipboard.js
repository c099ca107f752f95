// Copying by a click. A browser may refuse it: then the text is marked for the keys that copy, and the button says so.

import { common } from "./strings.js";

/** Copy; what the button that was clicked says after it. `mark()` selects the text in the page. */
export async function copied(text, mark) {
  try {
    await navigator.clipboard.writeText(text);
    return common.copied;
  } catch {
    mark();
    return common.copyByKeys;
  }
}
