/** Shows a turn in a list of the overview: its session, what there is to know of it, and what can be done about it. */

import { addressOf, h, say } from "./dom.js";

export class TurnRow {
  constructor(state, buttons) {
    this.link = h("a", { class: "session" });
    this.what = h("span", { class: "what" });
    this.meta = h("span", { class: "meta" });
    this.node = h("li", { "data-state": state }, this.link, this.what, this.meta, h("span", { class: "buttons" }, buttons));
  }

  update({ session_id: session }, what, meta) {
    this.link.href = addressOf(session);
    say(this.link, session);
    say(this.what, what);
    say(this.meta, meta);
  }
}
