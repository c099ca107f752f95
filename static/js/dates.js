// Points in time as people read them, in the browser's own way of writing.

const SHORT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** From unix seconds. */
export const dateTime = (seconds) => SHORT.format(new Date(seconds * 1000));

const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** From unix seconds, to the second. */
export const dateTimeExact = (seconds) => EXACT.format(new Date(seconds * 1000));
