/** Shows a list of the gateway as a table. */

import { allowed } from "../reading/api.js";
import { h, panel, say, show } from "./dom.js";

/** What the gateway lists at `/name`, as a table. `cellsOf(item)` has the text of each cell by its heading. */
export class Table {
  constructor(name, title, nothing, keyOf, cellsOf) {
    Object.assign(this, { name, keyOf, cellsOf });
    this.head = h("tr", {});
    const body = h("tbody", {});
    const whole = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": title, hidden: true }, h("table", {}, h("thead", {}, this.head), body));
    this.panel = panel(title, nothing, body, whole);
    this.node = this.panel.node;
  }

  /** Read and show it. Returns null if this key may not see it. */
  async read() {
    const answer = await allowed(`/${this.name}`);
    return this.take(answer && answer[this.name]);
  }

  /** Show these items, or nothing for null. Returns them. */
  take(items) {
    show(this.node, items !== null);
    if (items === null) return null;
    if (items.length && !this.head.firstChild) this.head.append(...Object.keys(this.cellsOf(items[0])).map((name) => h("th", { scope: "col" }, name)));
    this.panel.update(items, this.keyOf, () => new TableRow(this.cellsOf));
    return items;
  }
}

class TableRow {
  constructor(cellsOf) {
    this.cellsOf = cellsOf;
    this.node = h("tr", {});
  }

  update(item) {
    Object.values(this.cellsOf(item)).forEach((text, place) => {
      const cell = this.node.children[place] ?? this.node.appendChild(place ? h("td", {}) : h("th", { scope: "row" }));
      say(cell, text);
    });
  }
}
