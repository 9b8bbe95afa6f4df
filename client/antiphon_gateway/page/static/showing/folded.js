/** A part of the page that is closed at first: its module is imported when it opens. */

import { h, notify, onDemand, show } from "./dom.js";

/**
 * `read` imports a module of panels/ that exports a class `Panel`, which is made with `given` and has a `node` and `read()`.
 * `read()` is called when the panel opens, and by `refresh` while it is open; it returns null if this key may not see it.
 */
export class Folded {
  constructor(title, read, { look = "panel", given = undefined } = {}) {
    this.node = h("details", { class: look }, h("summary", {}, title));
    this.made = onDemand(async () => {
      const { Panel } = await read();
      const made = new Panel(given);
      this.node.append(made.node);
      return made;
    });
    this.node.addEventListener("toggle", () => this.refresh().catch((problem) => notify(problem.message)));
  }

  async refresh() {
    if (!this.node.open) return;
    const found = await (await this.made()).read();
    if (found !== undefined) show(this.node, found !== null);
  }
}
