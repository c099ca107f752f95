// What X11 calls the key of a keyboard event. Only for mirrored input; in one desktop the viewer's own, larger table is used.

const NAMED = {
  Backspace: 0xff08, Tab: 0xff09, Enter: 0xff0d, Pause: 0xff13, ScrollLock: 0xff14, Escape: 0xff1b, Home: 0xff50, ArrowLeft: 0xff51,
  ArrowUp: 0xff52, ArrowRight: 0xff53, ArrowDown: 0xff54, PageUp: 0xff55, PageDown: 0xff56, End: 0xff57, Print: 0xff61, Insert: 0xff63,
  ContextMenu: 0xff67, NumLock: 0xff7f, CapsLock: 0xffe5, Delete: 0xffff, AltGraph: 0xfe03, Dead: null,
};
// Left and right.
const MODIFIERS = { Shift: [0xffe1, 0xffe2], Control: [0xffe3, 0xffe4], Meta: [0xffeb, 0xffec], Alt: [0xffe9, 0xffea] };
const F1 = 0xffbe;
const UNICODE = 0x01000000;

/** The keysym of `event`, or null for a key that has none (a dead key, one of an input method). */
export function keysymOf(event) {
  const { key } = event;
  if (key in MODIFIERS) return MODIFIERS[key][event.location === KeyboardEvent.DOM_KEY_LOCATION_RIGHT ? 1 : 0];
  if (key in NAMED) return NAMED[key];
  const number = /^F([1-9]|1[0-9]|2[0-4])$/.exec(key)?.[1];
  if (number) return F1 + Number(number) - 1;
  const [character, ...rest] = key;
  if (rest.length) return null;
  const code = character.codePointAt(0);
  return (code >= 0x20 && code <= 0x7e) || (code >= 0xa0 && code <= 0xff) ? code : UNICODE + code;
}
