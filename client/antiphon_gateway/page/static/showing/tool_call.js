/** Shows a tool call: its arguments, how far it is, its result, and what somebody has to decide about it. */

import { buttonFor, h, notify, onSubmit, press, say, show } from "./dom.js";
import { ago, clock, pretty, short } from "./format.js";

/** `act("approve" | "reject" | "answer", call, …)` decides about a call that waits. */
export class ToolCallView {
  #stamp = -1;

  constructor(act) {
    this.act = act;
    this.state = h("span", { class: "state" });
    this.name = h("span", { class: "name" });
    this.gist = h("span", { class: "gist" });
    this.arguments = h("code", {});
    this.result = h("code", {});
    this.resultBox = h("div", { class: "box" }, h("h4", {}, "Result"), h("pre", { tabindex: "0" }, this.result));
    this.customs = h("div", { class: "customs" });
    this.details = h("details", {},
      h("summary", {}, this.state, this.name, this.gist),
      h("div", { class: "box" }, h("h4", {}, "Arguments"), h("pre", { tabindex: "0" }, this.arguments)), this.resultBox, this.customs);
    this.bar = h("progress", { max: "1", "aria-label": "How far the tool is" });
    this.far = h("span", {});
    this.progress = h("div", { class: "progress", hidden: true }, this.bar, this.far);
    this.decision = h("p", { class: "decision", hidden: true });
    this.node = h("div", { class: "call" }, this.details, this.progress, this.decision);
  }

  update(call) {
    if (call.stamp === this.#stamp) return;
    this.#stamp = call.stamp;
    this.call = call;
    const state = stateOf(call);
    this.node.dataset.state = state;
    say(this.state, state);
    say(this.name, call.name || "tool");
    say(this.arguments, call.typed ?? pretty(call.arguments ?? {}));
    say(this.gist, short(call.typed ?? gistOf(call.arguments ?? {}), 160));
    show(this.resultBox, call.result !== undefined);
    if (call.result !== undefined) say(this.result, textOf(call.result));
    this.#updateProgress(call);
    this.#updateCustoms(call.customs ?? []);
    this.#updateDecision(call);
  }

  #updateProgress({ progress, result }) {
    show(this.progress, Boolean(progress) && result === undefined);
    if (this.progress.hidden) return;
    if (typeof progress.fraction === "number") this.bar.value = progress.fraction;
    else this.bar.removeAttribute("value");
    say(this.far, progress.text);
  }

  #updateCustoms(customs) {
    for (const one of customs.slice(this.customs.children.length)) {
      this.customs.append(h("p", {}, h("b", {}, one.name), ` ${short(pretty(one.data ?? null), 300)}`));
    }
  }

  #updateDecision(call) {
    if (call.open && !this.form) {
      this.form = call.open.kind === "tool" ? this.#answerForm(call) : this.#approvalForm(call);
      this.node.append(this.form);
      this.details.open = true;
    }
    if (!call.open && this.form) {
      this.form.remove();
      this.form = null;
      this.details.open = false;
    }
    const { decision } = call;
    show(this.decision, Boolean(decision) && decision.kind !== "result");
    if (this.decision.hidden) return;
    const done = decision.kind === "approve" ? (decision.arguments ? "Approved with other arguments" : "Approved") : "Rejected";
    const by = decision.by ? `by ${decision.by}` : "by its time limit";
    say(this.decision, [done, decision.here ? "here" : by, decision.at ? ago(decision.at) : "", decision.reason ? `– ${decision.reason}` : ""].filter(Boolean).join(" "));
  }

  #approvalForm(call) {
    const reason = h("input", { type: "text", "aria-label": "Reason for rejecting", placeholder: "Reason, if you reject it" });
    const changed = h("textarea", { rows: "4", spellcheck: "false", "aria-label": "Arguments as JSON" });
    const change = h("details", { class: "change" }, h("summary", {}, "Change the arguments"), changed);
    change.addEventListener("toggle", () => { if (change.open && !changed.value) changed.value = pretty(this.call.arguments ?? {}); });
    const approve = h("button", { type: "submit", class: "main" }, "Approve");
    const reject = buttonFor("Reject", () => this.act("reject", this.call, reason.value.trim() || undefined), "");
    return this.#form(call, `${call.name} waits for your approval.`, () => {
      const given = argumentsOf(change.open ? changed.value : "");
      if (given !== null) press(approve, () => this.act("approve", this.call, given));
    }, change, h("div", { class: "row" }, approve, reject, reason));
  }

  #answerForm(call) {
    const text = h("textarea", { rows: "3", "aria-label": `Result of ${call.name}`, placeholder: "The result, as text or JSON" });
    const wrong = h("input", { type: "checkbox" });
    const give = h("button", { type: "submit", class: "main" }, "Give the result");
    return this.#form(call, `${call.name} is a tool on the client: the turn waits for its result.`, () => {
      press(give, () => this.act("answer", this.call, text.value, wrong.checked));
    }, text, h("div", { class: "row" }, give, h("label", {}, wrong, " It is an error")));
  }

  #form(call, title, work, ...children) {
    const { until, at_limit: limit } = call.open;
    const then = { reject: "it is rejected", approve: "it is approved", fail: "the turn fails" }[limit];
    const form = h("form", { class: "decide", "aria-label": title }, h("p", {}, h("b", {}, title), until ? ` After ${clock(until)} ${then}.` : ""), ...children);
    onSubmit(form, work);
    return form;
  }
}

function argumentsOf(text) {
  if (!text.trim()) return undefined;
  try {
    const found = JSON.parse(text);
    if (found && typeof found === "object" && !Array.isArray(found)) return found;
  } catch {
    // said below
  }
  notify("The arguments must be a JSON object.");
  return null;
}

function stateOf(call) {
  if (call.open) return "waits";
  if (call.result !== undefined) return call.is_error ? "error" : "done";
  if (call.decision?.kind === "reject") return "rejected";
  return call.typed === undefined ? "runs" : "called";
}

const gistOf = (values) => Object.entries(values).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");

const textOf = (content) => (Array.isArray(content) ? content.map((part) => part.text ?? `[${part.type}]`).join("\n") : pretty(content));
