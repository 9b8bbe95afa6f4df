/** An ended turn beside its variants: what other revisions, models or prompts answer. It starts further ones. */

import { get, path, post } from "../reading/api.js";
import { arrange, h, onSubmit, press, say } from "../showing/dom.js";
import { count, line, many, money } from "../showing/format.js";

const AGAIN_MS = 1500;
const NOT_SEEN = "Only keys with the right admin may replay turns.";
const STATES = { running: "Running", lost: "Lost: its worker has stopped." };

export class Panel {
  constructor(turn) {
    this.turn = turn;
    this.note = h("p", { class: "faint" });
    this.fields = Object.fromEntries([["revision", "agent@revision or agent@label", true], ["model", "another model"], ["system", "another system prompt"]].map(([name, hint, required]) => [name, h("input", { "aria-label": hint, placeholder: hint, required, autocomplete: "off", spellcheck: "false" })]));
    const go = h("button", { class: "small" }, "Run again");
    const form = h("form", { class: "row" }, Object.values(this.fields), go);
    onSubmit(form, () => press(go, () => this.#start()));
    this.sides = h("div", { class: "sides", tabindex: "0", role: "group", "aria-label": "Variants" });
    this.node = h("div", { class: "variants" }, form, this.note, this.sides);
  }

  async #start() {
    const body = Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.value.trim()]).filter(([, value]) => value));
    await post(path`/turns/${this.turn().id}/variants`, body);
    await this.read();
  }

  async read() {
    const { id } = this.turn();
    if (!id) return;
    try {
      const [recorded, runs] = await Promise.all([get(path`/turns/${id}`), get(path`/turns/${id}/variants`)]);
      const own = { id: "", title: "Recorded", steps: stepsOf(recorded.messages ?? []), facts: recorded.error ?? "" };
      arrange(this.sides, [own, ...runs.map((run) => sideOf(run, own.steps))], (one) => one.id, () => new Side());
      say(this.note, runs.length ? "" : "Run this turn again on another revision, model or prompt. Tools return their recorded results.");
      clearTimeout(this.timer);
      if (runs.some((run) => (run.status ?? "running") === "running") && this.node.isConnected) this.timer = setTimeout(() => this.read().catch(() => {}), AGAIN_MS);
    } catch (problem) {
      if (problem.status !== 403 && problem.status !== 404) throw problem;
      say(this.note, problem.status === 403 ? NOT_SEEN : "The turn is not kept any more.");
    }
  }
}

/** A line for each answer of the model: its text and its tool calls. */
function stepsOf(messages) {
  return messages.filter((one) => one.role === "assistant").map((one) => one.parts.map((part) => (part.type === "text" ? part.text : part.type === "tool_call" ? `${part.name}(${JSON.stringify(part.arguments ?? {})})` : "")).filter(Boolean).join("\n"));
}

function sideOf(run, recorded) {
  const { variant } = run;
  const steps = stepsOf(variant?.messages ?? []);
  const first = Array.from({ length: Math.max(steps.length, recorded.length) }, (_, place) => place).find((place) => steps[place] !== recorded[place]);
  const { input_tokens: read = 0, output_tokens: written = 0, cost } = variant?.usage ?? {};
  const facts = variant && [variant.error, first === undefined ? "no difference" : `differs in call ${first + 1}`, many(steps.length, "call"), `${count(read + written)} tokens`, typeof cost === "number" && money(cost), `${(variant.seconds ?? 0).toFixed(2)} s`];
  return { id: run.id, title: line([`${run.agent}@${run.revision}`, variant?.model || run.model, run.system && "another prompt"]), steps, first, facts: facts ? line(facts) : STATES[run.status ?? "running"] };
}

class Side {
  constructor() {
    this.title = h("h4", {});
    this.facts = h("p", { class: "faint" });
    this.steps = h("ol", {});
    this.node = h("section", {}, this.title, this.facts, this.steps);
  }

  update({ title, facts, steps, first }) {
    say(this.title, title);
    say(this.facts, facts);
    this.steps.replaceChildren(...steps.map((text, place) => h("li", { class: place === first ? "differs" : "" }, text)));
  }
}
