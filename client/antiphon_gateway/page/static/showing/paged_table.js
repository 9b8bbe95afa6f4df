/** A table in a panel: it reads a list of several pages, and not at each refresh. */

import { allowed } from "../reading/api.js";
import { h, show } from "./dom.js";
import { Table } from "./table.js";

const MOST_PAGES = 10;

export class PagedTable {
  #readAt = 0;
  #table;
  #cut = h("p", { class: "faint", hidden: true }, "Only the first pages are shown. The command line lists all.");

  /** Like a `Table`, read at most once in `everyMs`. */
  constructor(everyMs, ...table) {
    this.everyMs = everyMs;
    this.#table = new Table(...table);
    this.node = h("div", {}, this.#table.node, this.#cut);
  }

  /** Returns null if this key may not see the list, and undefined if it was read a moment ago. */
  async read() {
    if (Date.now() - this.#readAt < this.everyMs) return undefined;
    this.#readAt = Date.now();
    const { name } = this.#table;
    const items = [];
    let cursor = undefined;
    for (let page = 0; page < MOST_PAGES && cursor !== null; page += 1) {
      const answer = await allowed(`/${name}`, { cursor });
      if (answer === null) return this.#table.take(null);
      items.push(...answer[name]);
      cursor = answer.cursor ?? null;
    }
    show(this.#cut, cursor !== null);
    return this.#table.take(items);
  }
}
