// Where one is logged in.

import { endOtherSessions, endSession, sessions as list } from "./account_api.js";
import { actions, fillPart, table } from "./account_parts.js";
import { dateTime } from "./dates.js";
import { button, h } from "./dom.js";
import { sessions as words } from "./strings_account.js";

const BROWSERS = [["Edg/", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]];
const SYSTEMS = ["Windows", "Android", "iPhone", "iPad", "Mac OS X", "CrOS", "Linux"];

/** "Firefox, Linux" of what a browser says of itself; the full text is the title. */
function browserOf(agent) {
  const browser = BROWSERS.find(([mark]) => agent.includes(mark))?.[1];
  const system = SYSTEMS.find((mark) => agent.includes(mark));
  return [browser, system].filter(Boolean).join(", ") || agent.slice(0, 40) || words.unknown;
}

export async function sessionsPart(section, attempt) {
  const found = await list();
  const redo = () => sessionsPart(section, attempt);
  const rows = found.map((session) => {
    const browser = browserOf(session.agent);
    const name = h("span", { textContent: browser, title: session.agent });
    const end = button(words.end, { on: () => attempt(async () => (await endSession(session.id), redo())) });
    end.setAttribute("aria-label", words.endLabel(browser));
    const last = session.current ? h("span", { className: "hint", textContent: words.thisOne }) : actions(end);
    return [name, session.address, dateTime(session.created), dateTime(session.active), last];
  });
  const others = button(words.endOthers, { on: () => attempt(async () => (await endOtherSessions(), redo())) });
  others.disabled = found.length < 2;
  fillPart(section, words, table(words.title, words.columns, rows), others);
}
