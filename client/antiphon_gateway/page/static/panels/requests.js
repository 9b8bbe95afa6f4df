/** What the models received in a turn, call by call. */

import { get, path } from "../reading/api.js";
import { arrange, h, say } from "../showing/dom.js";
import { clock, count, line, pretty } from "../showing/format.js";

const NOT_KEPT = "The requests of this turn are not kept: App(keep_requests=True) keeps them for 7 days.";
const NOT_SEEN = "Requests show system prompts: only keys with the right admin may read them.";

export class Panel {
  constructor(turnId) {
    this.turnId = turnId;
    this.note = h("p", { class: "faint" });
    this.list = h("div", {});
    this.node = h("div", { class: "requests" }, this.note, this.list);
  }

  async read() {
    try {
      const id = this.turnId();
      const found = id ? await get(path`/turns/${id}/requests`) : []; // messages that no turn has brought have no id
      say(this.note, found.length ? "" : NOT_KEPT);
      arrange(this.list, found, (one) => `${one.run}.${one.attempt}.${one.step}.${one.at}`, () => new Request());
    } catch (problem) {
      if (problem.status !== 403 && problem.status !== 404) throw problem;
      say(this.note, problem.status === 403 ? NOT_SEEN : NOT_KEPT);
    }
  }
}

class Request {
  constructor() {
    this.title = h("summary", {});
    this.code = h("code", {});
    this.node = h("details", { class: "json" }, this.title, h("pre", { tabindex: "0" }, this.code));
  }

  update(one) {
    const what = one.step ? `Step ${one.step}` : "Summary of the history";
    const again = [one.run > 1 && `run ${one.run}`, one.attempt > 1 && `attempt ${one.attempt}`];
    say(this.title, line([what, `${one.provider}/${one.model}`, ...again, clock(one.at), `${count(one.size)} bytes`]));
    say(this.code, one.body === undefined || one.body === null ? "It was too long to be kept." : pretty(one.body));
  }
}
