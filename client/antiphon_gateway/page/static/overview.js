/** What an operator looks at first: what is suspended, what has failed, the queues and the workers. */

import { get, path, post } from "./reading/api.js";
import { FailedPanel } from "./failed.js";
import { arrange, h, notify, panel, pointTo, press, say, sessionLink, show } from "./showing/dom.js";
import { ago, count, duration, many, short } from "./showing/format.js";

const AGENTS_MS = 10_000; // between two looks at the agents, for which the gateway reads all unfinished turns

/** `counts` of the list of sessions; `refresh` reads what this shows. */
export class Overview {
  #looked = 0;

  constructor() {
    this.tiles = h("div", { id: "tiles" });
    this.waiting = panel("Suspended turns", "No turn is suspended.");
    this.failed = new FailedPanel();
    this.queues = table("Queues", ["Queue", "Queued", "Oldest", "Running", "Waiting", "Delayed", "Workers"], "There are no queues yet.");
    this.workers = table("Workers", ["Worker", "Turns", "Queues", "Finished", "Failed", "Started", "Heard"], "No worker is alive: turns wait until one starts.");
    this.agents = table("Agents", ["Agent", "Revision", "Share", "Workers", "Running", "Ended", "Failed", "Tool errors", "Tokens", "Cost", "Seconds", "Feedback"], "No worker has agents of its own.");
    document.getElementById("overview").append(h("h1", {}, "Overview"), this.tiles, this.waiting.node, this.failed.node, this.queues.node, this.workers.node, this.agents.node);
  }

  /** Read everything that this key may see. `waiting` and `counts` are known already. Throws `AntiphonError`. */
  async refresh(waiting, counts) {
    const [queues, workers, failed] = await Promise.all([allowed("/queues"), allowed("/workers"), allowed("/failed", this.failed.question())]);
    this.#drawTiles(counts, queues?.queues, workers?.workers, waiting);
    this.waiting.update(waiting, (turn) => turn.turn_id, () => new Waiting());
    show(this.failed.node, failed !== null);
    if (failed) this.failed.update(failed.turns);
    show(this.queues.node, queues !== null);
    if (queues) this.queues.update(queues.queues, (one) => one.name, queueCells);
    show(this.workers.node, workers !== null);
    if (workers) this.workers.update(workers.workers, (one) => one.name, workerCells);
    if (Date.now() - this.#looked > AGENTS_MS) await this.#drawAgents();
  }

  async #drawAgents() {
    const agents = await allowed("/agents");
    this.#looked = Date.now();
    show(this.agents.node, agents !== null);
    if (agents) this.agents.update(agents.agents, (one) => `${one.agent}@${one.revision}`, agentCells);
  }

  #drawTiles(counts, queues, workers, waiting) {
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

function table(title, heads, nothing) {
  const body = h("tbody", {});
  const none = h("p", { class: "faint", hidden: true }, nothing);
  const head = h("thead", {}, h("tr", {}, heads.map((one) => h("th", { scope: "col" }, one))));
  const whole = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, h("table", {}, head, body));
  const node = h("section", { class: "panel" }, h("h2", {}, title), whole, none);
  const update = (items, keyOf, cellsOf) => {
    arrange(body, items, keyOf, () => new TableRow(cellsOf));
    show(none, items.length === 0);
    show(whole, items.length > 0);
  };
  return { node, update };
}

class TableRow {
  constructor(cellsOf) {
    this.cellsOf = cellsOf;
    this.node = h("tr", {});
  }

  update(item) {
    this.cellsOf(item).forEach((text, place) => {
      const cell = this.node.children[place] ?? this.node.appendChild(place ? h("td", {}) : h("th", { scope: "row" }));
      say(cell, text);
    });
  }
}

const queueCells = (one) => [
  one.name, count(one.queued), typeof one.oldest_seconds === "number" ? duration(one.oldest_seconds * 1000) : "–",
  count(one.running), count(one.waiting), count(one.delayed), count(one.workers),
];

const workerCells = (one) => [
  one.name, count(one.running), one.queues.join(", "), count(one.finished), count(one.failed),
  one.since ? ago(one.since) : "–", one.heard ? ago(one.heard) : "–",
];

const agentCells = (one) => {
  const { finished = 0, failed = 0, cancelled = 0, tool_calls = 0, tool_errors = 0, tokens = 0, cost = 0, seconds = 0, rated = 0, scores = 0 } = one.figures;
  const ended = finished + failed + cancelled;
  return [
    one.agent, one.label ? `${one.revision} (${one.label})` : one.revision, typeof one.share === "number" ? `${+(one.share * 100).toFixed(4)} %` : "–",
    count(one.workers.length), count(one.running), count(ended), count(failed), tool_calls ? `${count(tool_errors)} of ${count(tool_calls)}` : "–",
    count(tokens), `$${cost.toFixed(4)}`, ended ? (seconds / ended).toFixed(2) : "–", rated ? `${(scores / rated).toFixed(2)} (${count(rated)})` : "–",
  ];
};

class Waiting {
  constructor() {
    this.link = sessionLink();
    this.what = h("span", { class: "what" });
    this.since = h("span", { class: "meta" });
    this.approve = h("button", { type: "button", class: "main small" }, "Approve");
    this.reject = h("button", { type: "button", class: "small" }, "Reject");
    this.node = h("li", { "data-state": "suspended" }, this.link, this.what, this.since, h("span", { class: "buttons" }, this.approve, this.reject));
    for (const [button, verb] of [[this.approve, "approve"], [this.reject, "reject"]]) {
      button.addEventListener("click", () => press(button, async () => {
        for (const one of this.turn.calls) await post(path`/turns/${this.turn.turn_id}/calls/${one.call_id}/${verb}`);
        notify(`${verb === "approve" ? "Approved" : "Rejected"}: ${this.what.textContent}`, { wrong: false, seconds: 5 });
      }));
    }
  }

  update(turn) {
    this.turn = turn;
    pointTo(this.link, turn.session_id);
    const what = turn.calls.map((one) => `${one.name}(${short(JSON.stringify(one.arguments ?? {}), 120)})`).join(", ");
    const decidable = turn.calls.length > 0 && turn.calls.every((one) => (one.kind ?? "approval") === "approval");
    say(this.what, what);
    say(this.since, decidable ? `for ${duration(Date.now() - turn.suspended)}` : `for its result, for ${duration(Date.now() - turn.suspended)}`);
    for (const [button, word] of [[this.approve, "Approve"], [this.reject, "Reject"]]) {
      show(button, decidable);
      button.setAttribute("aria-label", `${word} ${what} of ${turn.session_id}`);
    }
  }
}
