// A workspace's published ports in one line: as many as fit, the rest as a number that leads to all of them. Never half a number.

import { h, icon, replaceWhenChanged } from "./dom.js";
import { tile as words } from "./strings.js";

export class PortLine {
  element = h("span", { className: "ports" });
  #size = new ResizeObserver(() => this.#fit());

  constructor() {
    this.#size.observe(this.element);
  }

  /** `ports`: port inside to port of the host */
  update({ id, name, ports }) {
    const entries = Object.entries(ports);
    replaceWhenChanged(this.element, JSON.stringify([name, entries]), () => {
      const links = entries.map(([inside, outside]) => portLink(inside, name, outside));
      const rest = h("a", { className: "port more", href: `/w/${encodeURIComponent(id)}#ports` });
      queueMicrotask(() => this.#fit());
      return entries.length ? [...links, rest] : [];
    });
  }

  close() {
    this.#size.disconnect();
  }

  #fit() {
    const parts = [...this.element.children];
    if (!parts.length) return;
    const rest = parts.pop();
    for (const part of [...parts, rest]) part.hidden = false;
    rest.hidden = true;
    const room = this.element.clientWidth;
    // The line is what its parts are placed in.
    const ends = (part) => part.offsetLeft + part.offsetWidth;
    if (ends(parts.at(-1)) <= room) return;
    for (let kept = parts.length - 1; kept >= 0; kept -= 1) {
      parts[kept].hidden = true;
      rest.hidden = false;
      rest.textContent = words.morePorts(parts.length - kept);
      if (ends(rest) <= room) break;
    }
    const hidden = parts.filter((part) => part.hidden).map((part) => part.dataset.inside).join(", ");
    rest.title = words.morePortsTitle(hidden);
    rest.setAttribute("aria-label", words.morePortsTitle(hidden));
  }
}

function portLink(inside, name, outside) {
  return h(
    "a",
    {
      className: "port",
      href: `http://localhost:${outside}`,
      target: "_blank",
      rel: "noopener noreferrer",
      title: words.port(inside, name, outside),
      aria: { label: words.portLabel(inside, name, outside) },
      data: { inside },
    },
    h("span", { textContent: `:${inside}` }),
    h("span", { className: "port-host", textContent: String(outside) }),
    icon("external"),
  );
}
