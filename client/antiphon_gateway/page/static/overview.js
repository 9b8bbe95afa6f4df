/** What an operator looks at first: what is suspended, what has failed, the queues and the workers. */

import { get, path, post } from "./reading/api.js";
import { FailedPanel } from "./failed.js";
import { arrange, buttonFor, byId, h, notify, panel, say, show } from "./showing/dom.js";
import { ago, count, duration, many, short } from "./showing/format.js";
import { TurnRow } from "./showing/turn_row.js";

const AGENTS_MS = 10_000; // between two looks at the agents, for which the gateway reads all unfinished turns

/** `counts` of the list of sessions; `refresh` reads what this shows. */
export class Overview {
  #looked = 0;

  constructor() {
    this.tiles = h("div", { id: "tiles" });
    this.waiting = panel("Suspended turns", "No turn is suspended.");
    this.failed = new FailedPanel();
    this.queues = new Table("queues", "Queues", "There are no queues yet.", (one) => one.name, queueCells);
    this.workers = new Table("workers", "Workers", "No worker is alive: turns wait until one starts.", (one) => one.name, workerCells);
    this.agents = new Table("agents", "Agents", "No worker has agents of its own.", (one) => `${one.agent}@${one.revision}`, agentCells);
    byId("overview").append(h("h1", {}, "Overview"), this.tiles, ...[this.waiting, this.failed, this.queues, this.workers, this.agents].map((one) => one.node));
  }

  /** Read everything that this key may see. `waiting` and `counts` are known already. Throws `AntiphonError`. */
  async refresh(waiting, counts) {
    const [queues, workers, failed] = await Promise.all([this.queues.read(), this.workers.read(), allowed("/failed", this.failed.question())]);
    this.#drawTiles(counts, queues, workers);
    this.waiting.update(waiting, (turn) => turn.turn_id, () => new Waiting());
    show(this.failed.node, failed !== null);
    if (failed) this.failed.update(failed.turns);
    if (Date.now() - this.#looked < AGENTS_MS) return;
    await this.agents.read();
    this.#looked = Date.now();
  }

  #drawTiles(counts, queues, workers) {
    const total = (rows, name) => rows.reduce((sum, one) => sum + (one[name] ?? 0), 0);
    const oldest = queues && Math.max(0, ...queues.map((one) => one.oldest_seconds ?? 0));
    const tiles = [
      ["Running", counts.running, "running"],
      queues && ["Queued", total(queues, "queued"), "queued", oldest ? `the oldest for ${duration(oldest * 1000)}` : ""],
      ["Suspended", counts.suspended, "suspended"],
      ["Failed", counts.failed, "failed"],
      workers && ["Workers", workers.length, workers.length ? "workers" : "failed", `${many(total(workers, "running"), "turn")} in flight`],
    ].filter(Boolean);
    arrange(this.tiles, tiles, ([name]) => name, () => new Tile());
  }
}

const refused = new Set();

/** What a path answers; null if this key may not see it. It is not asked for again. */
async function allowed(where, query) {
  if (refused.has(where)) return null;
  try {
    return await get(where, query);
  } catch (problem) {
    if (problem.status !== 403 && problem.status !== 404) throw problem;
    refused.add(where);
    return null;
  }
}

class Tile {
  constructor() {
    this.number = h("b", {});
    this.name = h("span", {});
    this.more = h("small", {});
    this.node = h("div", { class: "tile" }, this.number, this.name, this.more);
  }

  update([name, number, state, more]) {
    say(this.number, count(number ?? 0));
    say(this.name, name);
    say(this.more, more ?? "");
    this.node.dataset.state = number ? state : "";
  }
}

/** What the gateway lists at `/name`, as a table. `cellsOf(item)` has the text of each cell by its heading. */
class Table {
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
    show(this.node, answer !== null);
    if (answer === null) return null;
    const items = answer[this.name];
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

const queueCells = (one) => ({
  Queue: one.name,
  Queued: count(one.queued),
  Oldest: typeof one.oldest_seconds === "number" ? duration(one.oldest_seconds * 1000) : "–",
  Running: count(one.running),
  Waiting: count(one.waiting),
  Delayed: count(one.delayed),
  Workers: count(one.workers),
});

const workerCells = (one) => ({
  Worker: one.name,
  Turns: count(one.running),
  Queues: one.queues.join(", "),
  Finished: count(one.finished),
  Failed: count(one.failed),
  Started: one.since ? ago(one.since) : "–",
  Heard: one.heard ? ago(one.heard) : "–",
});

const agentCells = (one) => {
  const { finished = 0, failed = 0, cancelled = 0, tool_calls = 0, tool_errors = 0, tokens = 0, cost = 0, seconds = 0, rated = 0, scores = 0 } = one.figures;
  const ended = finished + failed + cancelled;
  return {
    Agent: one.agent,
    Revision: one.label ? `${one.revision} (${one.label})` : one.revision,
    Share: typeof one.share === "number" ? `${+(one.share * 100).toFixed(4)} %` : "–",
    Workers: count(one.workers.length),
    Running: count(one.running),
    Ended: count(ended),
    Failed: count(failed),
    "Tool errors": tool_calls ? `${count(tool_errors)} of ${count(tool_calls)}` : "–",
    Tokens: count(tokens),
    Cost: `$${cost.toFixed(4)}`,
    Seconds: ended ? (seconds / ended).toFixed(2) : "–",
    Feedback: rated ? `${(scores / rated).toFixed(2)} (${count(rated)})` : "–",
  };
};

class Waiting {
  constructor() {
    this.buttons = [["Approve", "main small"], ["Reject", "small"]].map(([word, look]) => buttonFor(word, () => this.#decide(word), look));
    this.row = new TurnRow("suspended", this.buttons);
    this.node = this.row.node;
  }

  async #decide(word) {
    for (const one of this.turn.calls) await post(path`/turns/${this.turn.turn_id}/calls/${one.call_id}/${word.toLowerCase()}`);
    notify(`${word === "Approve" ? "Approved" : "Rejected"}: ${this.what}`, { wrong: false, seconds: 5 });
  }

  update(turn) {
    this.turn = turn;
    this.what = turn.calls.map((one) => `${one.name}(${short(JSON.stringify(one.arguments ?? {}), 120)})`).join(", ");
    const decidable = turn.calls.length > 0 && turn.calls.every((one) => (one.kind ?? "approval") === "approval");
    this.row.update(turn, this.what, `${decidable ? "" : "for its result, "}for ${duration(Date.now() - turn.suspended)}`);
    for (const button of this.buttons) {
      show(button, decidable);
      button.setAttribute("aria-label", `${button.textContent} ${this.what} of ${turn.session_id}`);
    }
  }
}
