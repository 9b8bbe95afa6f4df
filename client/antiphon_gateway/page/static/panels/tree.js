/** A turn with its sub-agents, and theirs: how each stands, for how long and at what cost. It follows them while open. */

import { get, path } from "../reading/api.js";
import { addressOf, arrange, h, say } from "../showing/dom.js";
import { count, duration, line, many, money, statusWord } from "../showing/format.js";

const AGAIN_MS = 1500;
const ENDED = ["finished", "failed", "cancelled"];

export class Panel {
  constructor(turn) {
    this.turn = turn;
    this.note = h("p", { class: "faint" });
    this.list = h("ul", {});
    this.node = h("div", { class: "tree" }, this.note, this.list);
  }

  async read() {
    const { id } = this.turn();
    if (!id) return;
    try {
      const tree = await get(path`/turns/${id}/tree`);
      const below = flat(tree.children ?? []);
      const lost = tree.left_out?.length;
      say(this.note, below.length || lost ? line([`Together, ${many(below.length, "sub-agent")} and this turn`, ...spent(tree.total_usage), lost && `${many(lost, "unreadable turn")} not counted`]) : "No sub-agent of this turn is kept any more.");
      arrange(this.list, tree.children ?? [], (one) => one.turn_id, () => new Branch());
      this.#again([tree, ...below].some((one) => !ENDED.includes(one.status)));
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      say(this.note, "The turn is not kept any more.");
    }
  }

  #again(wanted) {
    clearTimeout(this.timer);
    if (wanted) this.timer = setTimeout(() => this.node.closest("details[open]") && this.node.isConnected && this.read().catch(() => this.#again(true)), AGAIN_MS);
  }
}

const flat = (children) => children.flatMap((one) => [one, ...flat(one.children ?? [])]);

function spent({ input_tokens: read = 0, output_tokens: written = 0, cost } = {}) {
  return [read + written > 0 && `${count(read + written)} tokens`, typeof cost === "number" && money(cost)];
}

/** A sub-agent's turn with those below it. Its name leads to its session. */
class Branch {
  constructor() {
    this.link = h("a", {});
    this.pill = h("span", { class: "pill" });
    this.facts = h("span", { class: "faint" });
    this.list = h("ul", {});
    this.node = h("li", {}, h("p", {}, this.link, this.pill, this.facts), this.list);
  }

  update(one) {
    this.node.dataset.turn = one.turn_id;
    this.link.href = addressOf(one.session_id);
    say(this.link, one.agent ?? one.session_id);
    this.link.title = one.session_id;
    say(this.pill, statusWord(one.status));
    this.pill.dataset.state = one.status;
    say(this.facts, line([one.started && duration((one.ended ?? Date.now()) - one.started), ...spent(one.usage), one.code]));
    arrange(this.list, one.children ?? [], (child) => child.turn_id, () => new Branch());
  }
}
