/** What an operator looks at first: what is suspended, what has failed, the queues and the workers. */

import { allowed, path, post } from "./reading/api.js";
import { FailedPanel } from "./failed.js";
import { arrange, buttonFor, byId, h, notify, panel, say, show } from "./showing/dom.js";
import { ago, count, duration, many, short } from "./showing/format.js";
import { Folded } from "./showing/folded.js";
import { Table } from "./showing/table.js";
import { TurnRow } from "./showing/turn_row.js";

// Panels that are closed at first: the title, and a module of panels/ as `Folded` reads it. A new panel is one line here.
const FOLDED = [["Agents", () => import("./panels/agents.js")], ["Budgets", () => import("./panels/budgets.js")]];

/** `counts` of the list of sessions; `refresh` reads what this shows. */
export class Overview {
  constructor() {
    this.tiles = h("div", { id: "tiles" });
    this.waiting = panel("Suspended turns", "No turn is suspended.");
    this.failed = new FailedPanel();
    this.queues = new Table("queues", "Queues", "There are no queues yet.", (one) => one.name, queueCells);
    this.workers = new Table("workers", "Workers", "No worker is alive: turns wait until one starts.", (one) => one.name, workerCells);
    this.folded = FOLDED.map(([title, read]) => new Folded(title, read));
    byId("overview").append(h("h1", {}, "Overview"), this.tiles, ...[this.waiting, this.failed, this.queues, this.workers, ...this.folded].map((one) => one.node));
  }

  /** Read everything that this key may see. `waiting` and `counts` are known already. Throws `AntiphonError`. */
  async refresh(waiting, counts) {
    const [queues, workers, failed] = await Promise.all([this.queues.read(), this.workers.read(), allowed("/failed", this.failed.question())]);
    this.#drawTiles(counts, queues, workers);
    this.waiting.update(waiting, (turn) => turn.turn_id, () => new Waiting());
    show(this.failed.node, failed !== null);
    if (failed) this.failed.update(failed.turns);
    await Promise.all(this.folded.map((one) => one.refresh()));
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
