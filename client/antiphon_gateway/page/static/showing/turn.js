/** Shows one turn: what was asked, what was said and done, and how it stands. */

import { arrange, buttonFor, h, say, show } from "./dom.js";
import { clock, count, duration, line, many, money, pretty, short, statusWord } from "./format.js";
import { Folded } from "./folded.js";
import { Prose } from "./prose.js";
import { ToolCallView } from "./tool_call.js";
import { begun, ended } from "../reading/conversation.js";

/** `actions` has `requeue(turn)`, `cancel(turn)`, `approve`, `reject` and `answer` of a pending tool call. */
export class TurnView {
  #stamp = -1;

  constructor(turn, actions) {
    this.actions = actions;
    this.asked = h("div", { class: "asked" });
    this.pieces = h("div", { class: "pieces" });
    this.output = new Json("Structured output");
    this.received = new Folded("What the model received", () => import("../panels/requests.js"), { look: "json received", given: () => this.turn.id });
    this.below = new Folded("Sub-agents", () => import("../panels/tree.js"), { look: "json below", given: () => this.turn });
    this.variants = new Folded("Variants", () => import("../panels/variants.js"), { look: "json again", given: () => this.turn });
    this.mark = h("p", { class: "mark" });
    this.pill = h("span", { class: "pill" });
    this.facts = h("span", { class: "facts" });
    this.buttons = h("span", { class: "buttons" });
    this.foot = h("footer", {}, this.pill, this.facts, this.buttons);
    this.node = h("article", { class: "turn", "aria-label": "Turn" }, this.asked, this.pieces, this.output.node, this.mark, this.foot, this.below.node, this.received.node, this.variants.node);
    this.requeue = this.#button("Requeue", () => actions.requeue(this.turn));
    this.remove = this.#button("Cancel", () => actions.cancel(this.turn));
    this.turn = turn;
  }

  update(turn) {
    if (turn.stamp === this.#stamp && turn === this.turn) return;
    this.#stamp = turn.stamp;
    this.turn = turn;
    this.node.dataset.status = turn.status;
    this.node.dataset.turn = turn.id;
    arrange(this.asked, turn.input.map((message, index) => ({ message, index })), (one) => one.index, () => new MessageView());
    arrange(this.pieces, turn.pieces, (piece) => piece.key, (piece) => viewOf(piece, this));
    this.output.update(turn.output);
    this.#updateMark(turn);
    show(this.below.node, turn.below === true);
    show(this.variants.node, turn.id !== "" && ended(turn));
    show(this.received.node, turn.id !== "" && turn.steps + turn.attempt > 0);
    this.#updateFoot(turn);
  }

  #updateMark(turn) {
    const text = markOf(turn);
    say(this.mark, text);
    show(this.mark, text !== "");
    this.mark.classList.toggle("wrong", turn.status === "failed");
  }

  #updateFoot(turn) {
    say(this.pill, statusWord(turn.status));
    this.pill.dataset.state = turn.status;
    show(this.pill, turn.status !== "finished");
    say(this.facts, factsOf(turn));
    show(this.requeue, turn.status === "failed");
    show(this.remove, !ended(turn) && !begun(turn));
    show(this.foot, turn.id !== "" && !(turn.status === "finished" && this.facts.textContent === ""));
  }

  #button(text, work) {
    const button = buttonFor(text, work);
    this.buttons.append(button);
    return button;
  }
}

function markOf(turn) {
  if (turn.status === "failed") return `${turn.error?.text || "The turn failed."}${turn.error?.code ? ` (${turn.error.code})` : ""}`;
  if (turn.steeredInto) return "The turn that ran took this message.";
  if (turn.status === "cancelled" || turn.stopped) {
    const kept = { nothing: "Nothing of it stays in the history.", steps: "Its finished steps stay in the history." }[turn.stopped?.keep];
    const reason = turn.stopped?.reason ? `Stopped: ${turn.stopped.reason}.`.replace("..", ".") : "Stopped.";
    return kept ? `${reason} ${kept}` : reason;
  }
  if (turn.retry) return `Trying again${turn.retry.at > Date.now() ? ` at ${clock(turn.retry.at)}` : ""}: ${turn.retry.reason || turn.retry.code}`;
  if (turn.due > Date.now()) return `It starts at ${clock(turn.due)}.`;
  if (turn.omitted && turn.input.length === 0) return "The message is too long for an event: reload to see it.";
  if (turn.limit) return `It ended at the limit ${turn.limit}.`;
  return "";
}

function factsOf(turn) {
  const { input_tokens: read, output_tokens: written, cost } = turn.usage ?? {};
  return line([
    ended(turn) && turn.ended && clock(turn.ended),
    turn.attempt > 1 && `attempt ${turn.attempt}`,
    turn.started && turn.ended && duration(turn.ended - turn.started),
    turn.steps > 1 && many(turn.steps, "step"),
    (read || written) && `${count(read ?? 0)} in, ${count(written ?? 0)} out`,
    typeof cost === "number" && money(cost),
    turn.model,
    turn.status === "running" && turn.worker && `on ${short(turn.worker, 40)}`,
  ]);
}

const FRAMES = {
  text: () => h("div", { class: "said" }),
  refusal: () => h("div", { class: "said refusal" }),
  note: () => h("div", { class: "note" }),
  reasoning: () => h("details", { class: "reasoning" }, h("summary", {}, "Reasoning")),
};

function viewOf(piece, { actions, turn }) {
  if (piece.kind in FRAMES) return new PieceView(FRAMES[piece.kind](), new Prose(), (one) => one.text);
  switch (piece.kind) {
    case "call": return new ToolCallView((name, ...values) => actions[name](turn, ...values));
    case "input": return new MessageView();
    case "file": return new FileView();
    default: return new PieceView(h("div", {}), new Json("Item"), (one) => one.data, (one) => `${one.provider || "The provider"}'s item: ${one.data?.type ?? ""}`);
  }
}

/** A piece whose content another view shows. */
class PieceView {
  #stamp = -1;

  constructor(node, inner, contentOf, titleOf) {
    Object.assign(this, { node, inner, contentOf, titleOf });
    node.append(inner.node);
  }

  update(piece) {
    if (piece.stamp === this.#stamp) return;
    this.#stamp = piece.stamp;
    if (this.titleOf) this.inner.title(this.titleOf(piece));
    this.inner.update(this.contentOf(piece));
  }
}

/** A message by a user, or an instruction. */
class MessageView {
  #shown = null;

  constructor() {
    this.node = h("div", { class: "message" });
  }

  update({ message }) {
    if (message === this.#shown) return;
    this.#shown = message;
    const prose = new Prose();
    prose.update(message.parts.filter((part) => part.type === "text").map((part) => part.text).join("\n\n"));
    const files = message.parts.filter((part) => part.type !== "text").map(fileNode);
    const who = message.role === "system" ? h("span", { class: "who" }, "Instruction") : h("span", { class: "hidden" }, "User");
    this.node.classList.toggle("system", message.role === "system");
    this.node.replaceChildren(who, prose.node, ...files);
  }
}

class FileView {
  constructor() {
    this.node = h("div", { class: "said" });
  }

  update(piece) {
    if (!this.node.firstChild) this.node.append(fileNode(piece.data));
  }
}

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** A picture that came with the message, or the name of a file. Nothing is fetched from elsewhere. */
function fileNode(part) {
  if (part.type === "image" && part.data && PICTURES.has(part.media_type)) {
    return h("img", { src: `data:${part.media_type};base64,${part.data}`, alt: "Picture of the message" });
  }
  const name = part.name || part.url || part.file_id || part.media_type || part.type;
  return h("span", { class: "file" }, `${part.type === "image" ? "Picture" : "File"}: ${short(name, 200)}`);
}

/** JSON that can be opened. */
class Json {
  constructor(title) {
    this.summary = h("summary", {}, title);
    this.code = h("code", {});
    this.node = h("details", { class: "json", hidden: true }, this.summary, h("pre", { tabindex: "0" }, this.code));
  }

  title(text) {
    say(this.summary, text);
  }

  update(value) {
    show(this.node, value !== undefined && value !== null);
    if (!this.node.hidden) say(this.code, pretty(value));
  }
}
