// Building pages without HTML strings: whatever a workspace calls itself stays text.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  fork: "M5.6 8H7c2.6 0 1.9-4 4.2-4M7 8c2.6 0 1.9 4 4.2 4M2.4 8a1.6 1.6 0 1 0 3.2 0a1.6 1.6 0 1 0-3.2 0M11 4a1.6 1.6 0 1 0 3.2 0a1.6 1.6 0 1 0-3.2 0M11 12a1.6 1.6 0 1 0 3.2 0a1.6 1.6 0 1 0-3.2 0",
  open: "M9.5 2.5h4v4M13.5 2.5l-6 6M6.5 3.5h-3a1 1 0 0 0-1 1v8a1 1 0 0 0 1 1h8a1 1 0 0 0 1-1v-3",
  trash: "M2.5 4.5h11M6 4.5v-2h4v2M4 4.5l.6 8.6a.9.9 0 0 0 .9.9h5a.9.9 0 0 0 .9-.9l.6-8.6M6.7 7v4.5M9.3 7v4.5",
  reload: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
  external: "M6 3.5H3.5v9h9V10M9 3h4v4M13 3L7.5 8.5",
  close: "M4 4l8 8M12 4l-8 8",
  left: "M10 3.5L5.5 8l4.5 4.5",
  right: "M6 3.5L10.5 8L6 12.5",
  tree: "M3 3h4M3 3v10h3M3 8h3M8.5 8h5M8.5 13h5M9 3h4",
  check: "M3 8.5l3.3 3.3L13 4.8",
  keyboard: "M2 4.5h12v7H2zM4.5 7h.01M7 7h.01M9.5 7h.01M12 7h.01M5 9.500h6",
  upload: "M8 10.500v-8M4.800 5.500L8 2.300l3.200 3.200M2.500 10.500v3h11v-3",
  download: "M8 2.500v8M4.800 7.300L8 10.500l3.200-3.200M2.500 11v2.500h11V11",
  folder: "M2 12.500v-9h4l1.500 2h6.500v7z",
  file: "M4 2h5l3 3v9H4zM9 2v3h3",
  compare: "M2.500 4.500h5M5 2v5M2.500 11.500h5M13.500 2.500l-4 11",
  sides: "M2.500 3h11v10h-11zM8 3v10",
  live: "M5.200 5.200a4 4 0 0 0 0 5.600M10.800 5.200a4 4 0 0 1 0 5.600M3 3a7 7 0 0 0 0 10M13 3a7 7 0 0 1 0 10M8 7.950v.1",
  mirror: "M8 2v12M6 5L2.500 8L6 11M10 5l3.500 3l-3.500 3",
  swap: "M3 5.500h9M9.500 3l2.500 2.500L9.500 8M13 10.500H4M6.500 8L4 10.500L6.500 13",
  hand: "M4.500 8V4.200a1.100 1.100 0 0 1 2.200 0M6.700 7.500V2.900a1.100 1.100 0 0 1 2.200 0v4.600M8.900 7.500V3.700a1.100 1.100 0 0 1 2.200 0V8M11.100 6a1.100 1.100 0 0 1 2.200 0v4a4.200 4.200 0 0 1-4.200 4c-3 0-4-1.600-6.200-5.100a1.100 1.100 0 0 1 1.600-1.400",
  clock: "M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12M8 4.800V8l2.200 1.500",
  eye: "M1.500 8s2.300-4.300 6.500-4.300s6.500 4.300 6.500 4.300s-2.300 4.300-6.500 4.300S1.500 8 1.500 8zM6.200 8a1.800 1.800 0 1 0 3.600 0a1.800 1.800 0 1 0-3.600 0",
  code: "M5.500 4.500L2 8l3.500 3.500M10.500 4.500L14 8l-3.500 3.500M9 3L7 13",
  clipboard: "M6 3H4v10.500h8V3h-2M6 2h4v2.500H6z",
  alert: "M8 5.500v3.500M8 11.200v.01M8 2l6.5 11.500h-13z",
};

/** An element with properties, attributes (`aria`, `data`, `attributes`), listeners (`on`) and children (text or nodes). */
export function h(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  const { aria = {}, data = {}, attributes = {}, on = {}, ...properties } = options;
  Object.assign(element, properties);
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  for (const [name, value] of Object.entries(on)) element.addEventListener(name, value);
  Object.assign(element.dataset, data);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A QR code that the portal drew: an SVG `path` of lines one unit wide in a square of `size` units. Black on white in either colour scheme, as cameras want it. */
export function qrCode({ path, size }, label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${size} ${size}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.setAttribute("shape-rendering", "crispEdges");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  line.setAttribute("stroke", "#000");
  line.setAttribute("fill", "none");
  svg.append(line);
  return svg;
}

/** A button with an icon; `label` is shown unless `iconOnly`, and always what assistive technology reads. `caption`: the words below a lone
 * icon where there is no pointer that could rest on it to be told its title. */
export function button(label, { iconName, iconOnly = false, kind = "", on, title, caption = "" } = {}) {
  const element = h("button", { type: "button", className: `button ${kind} ${iconOnly ? "icon-only" : ""}`.trim(), title: title ?? (iconOnly ? label : "") });
  if (iconName) element.append(icon(iconName));
  // Narrow tiles hide the text of some buttons; they must not lose their name.
  element.setAttribute("aria-label", label);
  if (!iconOnly) element.append(h("span", { textContent: label }));
  else if (caption) element.append(h("span", { className: "caption", textContent: caption }));
  if (on) element.addEventListener("click", on);
  return element;
}

/** A message of the engine as people read it: a capital first, commands between back-ticks as code. */
export function prose(text) {
  const parts = text.split("`");
  // An odd count of back-ticks is no pair: leave such a text alone.
  if (parts.length % 2 === 0) return [capital(text)];
  return parts.map((part, index) => (index % 2 ? h("code", { textContent: part }) : index ? part : capital(part))).filter((part) => part !== "");
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Change text only when it differs, so that selections and screen readers are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Of a name that is cut: the most and the least letters that are kept at its end.
const NAME_END = 8;
const NAME_END_LEAST = 2;

const nameSizes = new ResizeObserver((entries) => entries.forEach(({ target }) => fitName(target)));

/** A name in one line: where the room ends it is cut before its last characters, which tell it from its relatives. Its element has the class `name`. In the
 * page it stays one text, to be read out, found and copied as it is; the end is drawn once more behind the cut. */
export function setName(element, name) {
  element.classList.add("name");
  if (element.textContent === name && element.firstChild) return;
  element.replaceChildren(h("span", { className: "name-text", textContent: name }));
  nameSizes.observe(element);
  fitName(element);
}

/** Whether a name is cut, by the room that it has now. */
function fitName(element) {
  const text = element.firstChild;
  element.classList.remove("cut");
  if (text.scrollWidth <= text.clientWidth) return;
  const letters = [...text.textContent];
  let kept = letters.length > NAME_END + 4 ? NAME_END : Math.floor(letters.length / 3);
  if (kept < NAME_END_LEAST) return;
  const drawn = document.createRange();
  drawn.setEnd(text.firstChild, text.textContent.length);
  const widthOf = (end) => {
    drawn.setStart(text.firstChild, text.textContent.length - end.length);
    return drawn.getBoundingClientRect().width;
  };
  const endOf = (count) => letters.slice(-count).join("");
  // The beginning has at least as much room.
  while (kept > NAME_END_LEAST && widthOf(endOf(kept)) > text.clientWidth / 2) kept -= 1;
  element.dataset.end = endOf(kept);
  element.style.setProperty("--end", `${widthOf(element.dataset.end)}px`);
  element.classList.add("cut");
}

/** Replace children only when a key says that they would differ. */
export function replaceWhenChanged(element, key, make) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...make());
}
