// How many tiles, and how they are arranged: the shape that gives pictures the most room.

import { SCREEN } from "./desktop.js";

const LAYOUT_KEY = "tclone-layout";
const LIVE_KEY = "tclone-all-live";
const HEADER = 49;
// Where a screen is touched, what can be done with a tile of such a width has a line of its own (tiles_narrow.css).
const TOUCHED = window.matchMedia("(hover: none) and (min-width: 760px)");
const HIGH_HEADER = 92;
const HIGH_FROM = 400;
const HIGH_TO = 720;
const GAP = 10;

export const CHOICES = ["auto", "1", "2", "4", "9"];
const MOST = 9;

/** The height of what stands above a picture, by the tile's width; with borders. */
const headerOf = (width) => (TOUCHED.matches && width - 2 > HIGH_FROM && width - 2 <= HIGH_TO ? HIGH_HEADER : HEADER);

class Layout extends EventTarget {
  #choice = CHOICES.includes(localStorage.getItem(LAYOUT_KEY)) ? localStorage.getItem(LAYOUT_KEY) : "auto";
  #allLive = localStorage.getItem(LIVE_KEY) === "yes";

  get choice() {
    return this.#choice;
  }

  set choice(value) {
    this.#choice = value;
    localStorage.setItem(LAYOUT_KEY, value);
    this.dispatchEvent(new Event("change"));
  }

  /** Whether every tile streams, not only the one in use. Kept in this browser, for its user. */
  get allLive() {
    return this.#allLive;
  }

  set allLive(value) {
    this.#allLive = value;
    localStorage.setItem(LIVE_KEY, value ? "yes" : "no");
    this.dispatchEvent(new Event("change"));
  }

  /** How many tiles a page of the grid has. */
  capacity(count) {
    if (this.#choice !== "auto") return Number(this.#choice);
    return [1, 2, 4, 9].find((size) => count <= size) ?? MOST;
  }

  /** One large tile and a strip of small ones: when only one of several streams, it gets the room. */
  spotlight(shown) {
    return this.#choice === "auto" && !this.#allLive && shown > 1;
  }

  /** `{columns, row}` for so many tiles in a place of this size, with the largest pictures; `row` is a row's height in pixels. */
  grid(shown, width, height) {
    let best = { columns: 1, row: height, scale: 0 };
    for (let columns = 1; columns <= shown; columns += 1) {
      const rows = Math.ceil(shown / columns);
      const column = (width - GAP * (columns - 1)) / columns;
      const most = (height - GAP * (rows - 1)) / rows;
      const header = headerOf(column);
      const scale = Math.min(column / SCREEN.width, (most - header) / SCREEN.height);
      // A tile is as high as its picture and no higher.
      if (scale > best.scale * 1.02) best = { columns, row: Math.min(most, column * (SCREEN.height / SCREEN.width) + header), scale };
    }
    return best;
  }
}

export const layout = new Layout();
