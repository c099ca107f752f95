// Copying by a click. A browser may refuse it: then the text is marked for the keys that copy, and who clicked is told so.

import { common } from "./strings.js";

/** Whether the browser let it be copied. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Copy; what is said of it at the place of the click, of `words`. `mark()` selects the text in the page. */
export async function copied(text, mark, words = common) {
  if (await copy(text)) return words.copied;
  mark();
  return words.copyByKeys;
}
