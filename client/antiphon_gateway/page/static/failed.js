/** The turns that have failed, filtered by their error and their agent, and run again: one, or all of them. */

import { path, post } from "./reading/api.js";
import { buttonFor, confirmed, h, notify, panel, show } from "./showing/dom.js";
import { ago, line, many, short } from "./showing/format.js";
import { TurnRow } from "./showing/turn_row.js";

const SHOWN = 20;

/** `update(turns)` shows what `question()` was answered with. */
export class FailedPanel {
  #known = { code: new Set(), agent: new Set() };

  constructor() {
    this.panel = panel("Failed in the last week", "No turn has failed.");
    this.node = this.panel.node;
    this.selects = { code: choice("Error", "every error"), agent: choice("Agent", "every agent") };
    this.all = buttonFor("Requeue all", () => this.#requeueAll());
    this.tools = h("div", { class: "tools" }, Object.values(this.selects).map((one) => one.select), this.all);
    this.node.querySelector("h2").after(this.tools);
    for (const { select } of Object.values(this.selects)) select.addEventListener("change", () => this.onchange?.());
  }

  /** The query of the list: what is selected here. */
  question = () => ({ ...this.#selected(), limit: SHOWN });

  update(turns) {
    this.panel.update(turns, (turn) => turn.turn_id, () => new Failed());
    for (const name of ["code", "agent"]) {
      for (const turn of turns) if (turn[name]) this.#known[name].add(turn[name]);
      this.selects[name].offer([...this.#known[name]].sort());
    }
    show(this.tools, turns.length > 0 || Object.keys(this.#selected()).length > 0);
    show(this.all, turns.length > 0);
  }

  #selected = () => Object.fromEntries(Object.entries(this.selects).map(([name, { select }]) => [name, select.value]).filter(([, value]) => value));

  async #requeueAll() {
    const which = this.#selected();
    const words = [which.code && `with the error ${which.code}`, which.agent && `of the agent ${which.agent}`].filter(Boolean).join(" ");
    const what = words ? `All turns ${words} that failed in the last week` : "All turns that failed in the last week, whatever their error,";
    if (!(await confirmed("Requeue all?", `${what} run again, at most 1,000 at once. Each costs what a new turn costs.`, "Requeue all"))) return;
    const { turns, refused } = await post("/failed/requeue", Object.keys(which).length ? which : { since: 0 });
    const left = Object.keys(refused).length;
    notify(`${many(turns.length, "turn")} ${turns.length === 1 ? "runs" : "run"} again.${left ? ` ${many(left, "turn")} did not: ${Object.values(refused)[0].message}` : ""}`, { wrong: left > 0 });
    this.onchange?.();
  }
}

/** A list to select one value, or none. */
function choice(name, every) {
  const select = h("select", { "aria-label": name }, h("option", { value: "" }, every));
  const offer = (values) => {
    const there = new Set([...select.options].map((one) => one.value));
    for (const value of values) if (!there.has(value)) select.append(h("option", { value }, value));
  };
  return { select, offer };
}

class Failed {
  constructor() {
    this.requeue = buttonFor("Requeue", () => this.#requeue());
    this.row = new TurnRow("failed", [this.requeue]);
    this.node = this.row.node;
  }

  async #requeue() {
    await post(path`/turns/${this.turn.turn_id}/requeue`);
    notify(`The turn of ${this.turn.session_id} runs again.`, { wrong: false, seconds: 5 });
    this.node.classList.add("gone");
  }

  update(turn) {
    this.turn = turn;
    this.row.update(turn, short(turn.error || "It failed.", 240), line([turn.code, turn.agent, turn.run > 1 && `run ${turn.run}`, turn.ended && ago(turn.ended)]));
    this.requeue.setAttribute("aria-label", `Requeue the turn of ${turn.session_id}`);
  }
}
