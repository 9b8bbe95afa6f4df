/**
 * What a session says: its turns in order, each with what it was asked, and what it said and did. Knows no page.
 *
 * A turn comes from messages of the history, from what is pending, or from events; each brings it to the same form:
 *   { key, id, status, input: [message], pieces: [piece], attempt, worker, steps, usage, model, error, calls, … }
 * A piece is what stands below each other in an answer; `stamp` grows with each change of it:
 *   { key, step, kind: "text" | "reasoning" | "refusal", text }      { kind: "call", call_id, name, arguments, result, … }
 *   { kind: "note", text }    { kind: "input", message }    { kind: "item", data }
 */

import { NOTES } from "./notes.js";

const ENDED = new Set(["finished", "failed", "cancelled"]);
const BEGUN = new Set(["running", "retrying", "suspended"]);
const SPOKEN = { text_delta: "text", reasoning_delta: "reasoning", refusal_delta: "refusal" };

export const ended = (turn) => ENDED.has(turn.status);

/** Whether a turn has begun and has not ended: what stopping stops. */
export const begun = (turn) => BEGUN.has(turn.status);

export class Conversation {
  turns = [];
  first = 0; // the place in the history of its first message that is here
  cursor = 0;
  #byId = new Map();
  #stamp = 0;

  /** Put messages of the history, which begin at the place `first`, before all that is here. */
  prepend(messages, first) {
    const before = turnsOf(messages);
    this.first = first;
    const seam = before.at(-1);
    const next = this.turns[0];
    if (seam && next && seam.id && seam.id === next.id) { // the page was cut within a turn
      before.pop();
      const whole = turnOf(seam.id);
      for (const message of [...seam.messages, ...next.messages]) addMessage(whole, message);
      this.turns[0] = Object.assign(next, whole, { status: next.status, settled: true });
      this.#touchAll(next);
    }
    for (const turn of before) this.#touchAll(turn);
    this.turns.unshift(...before);
    for (const turn of before) if (turn.id) this.#byId.set(turn.id, turn);
  }

  /** Forget turns from the beginning on, so that at most `most` stay. They can be read again. */
  trim(most) {
    while (this.turns.length > most && ended(this.turns[0])) {
      const [turn] = this.turns.splice(0, 1);
      this.first += turn.stored;
      if (turn.id) this.#byId.delete(turn.id);
    }
  }

  /** Add the turns of a snapshot that have not ended. */
  addPending(infos) {
    for (const info of infos) {
      if (this.#byId.has(info.turn_id)) continue;
      const turn = this.#add(info.turn_id);
      turn.input = info.input ?? [];
      this.describe(info);
      this.#open(turn, info.calls ?? []);
      for (const piece of turn.pieces) piece.early = true;
      for (const decision of info.decisions ?? []) this.#decide(turn, decision);
    }
  }

  /** Take what only a turn's own record has: times, usage, why it failed. */
  describe(info) {
    const turn = this.#byId.get(info.turn_id);
    if (!turn) return;
    const { status, attempt, started, ended: end, created, due, usage, metadata } = info;
    if (!turn.live) Object.assign(turn, { status, attempt: attempt ?? 0, started, ended: end, usage });
    Object.assign(turn, { created, due, metadata, below: turn.below || info.total_usage !== undefined });
    if (turn.status === "failed") turn.error = { code: info.code ?? "", text: info.error ?? "", service: info.service };
    if (turn.status === "cancelled") turn.stopped = { ...turn.stopped, reason: info.error ?? "" };
    this.#touch(turn);
  }

  /** Take an event. Returns "reload" if what is here no longer fits. */
  take(event) {
    this.cursor = event.seq;
    if (event.type === "history_cleared" || event.type === "message") return "reload";
    if (event.type === "history_rewound") return event.turn_id ? this.#revised(event) : "reload";
    if (event.type === "message_added") return this.#addLoose(event.message);
    if (!event.turn_id) return undefined;
    const turn = this.#byId.get(event.turn_id) ?? this.#add(event.turn_id);
    if (turn.settled && event.type !== "turn_queued") return undefined; // the history has told of it
    return this.#apply(turn, event);
  }

  find = (id) => this.#byId.get(id);

  /** Note a decision that was made here: no event comes before the last one is there. */
  decided(turn, decision) {
    const known = turn.pieces.find((one) => one.call_id === decision.call_id)?.decision;
    if (!known) this.#decide(turn, decision);
    this.#touch(turn);
  }

  #apply(turn, event) {
    turn.live = true;
    if (event.type === "child_event") turn.below = true;
    this.#touch(turn);
    const step = event.step || 1;
    if (event.type in SPOKEN) return void this.#speak(turn, step, SPOKEN[event.type], event.text);
    const note = NOTES[event.type]?.(event);
    if (note) return void this.#piece(turn, step, "note", { text: note });
    switch (event.type) {
      case "turn_queued":
        if (event.run > 1 || turn.settled) this.#again(turn);
        Object.assign(turn, { status: event.position ? "waiting" : "queued", created: event.at, omitted: event.input_omitted });
        if (event.input.length) turn.input = event.input;
        break;
      case "turn_started":
        this.#drop(turn, step);
        Object.assign(turn, { status: "running", attempt: event.attempt || 1, worker: event.worker, retry: null });
        turn.started ??= event.at;
        break;
      case "turn_retrying":
        this.#drop(turn, step);
        Object.assign(turn, { status: "retrying", retry: { code: event.code, reason: event.reason, at: event.retry_at } });
        break;
      case "turn_steered":
        for (const message of event.input) this.#piece(turn, step, "input", { message });
        break;
      case "turn_suspended":
        turn.status = "suspended";
        this.#open(turn, event.calls, event.step);
        break;
      case "turn_resumed":
        turn.status = "queued";
        for (const decision of event.decisions) this.#decide(turn, decision);
        break;
      case "tool_call_delta": {
        const call = this.#call(turn, event);
        call.typed = (call.typed ?? "") + event.arguments;
        break;
      }
      case "tool_call": this.#call(turn, event, { arguments: event.arguments, typed: undefined, open: null }); break;
      case "tool_progress": this.#call(turn, event, { progress: { text: event.text, fraction: event.fraction } }); break;
      case "tool_result": this.#call(turn, event, { result: event.result, is_error: event.is_error, open: null }); break;
      case "custom": {
        const call = this.#call(turn, { ...event, name: undefined });
        call.customs = [...(call.customs ?? []), { name: event.name, data: event.data }];
        break;
      }
      case "item": this.#piece(turn, step, "item", { data: event.item, provider: event.provider }); break;
      case "output_delta": turn.output = event.output; break;
      case "step_finished":
        Object.assign(turn, { steps: Math.max(turn.steps, step), model: event.model || turn.model });
        turn.usage = sum(turn.usage, event.usage);
        if (event.rejected) {
          this.#drop(turn, step);
          this.#piece(turn, step, "note", { text: `The answer did not fit and is asked for again: ${event.rejected}` });
        }
        break;
      case "turn_finished":
      case "turn_failed":
      case "turn_cancelled": return this.#end(turn, event);
      default: break;
    }
    return undefined;
  }

  #end(turn, event) {
    turn.status = event.type.slice("turn_".length);
    turn.ended = event.at;
    turn.retry = null;
    for (const piece of turn.pieces) if (piece.open) this.#change(piece, { open: null });
    if (turn.status === "failed") turn.error = { code: event.code, text: event.message, service: event.service };
    if (turn.status === "cancelled") turn.stopped = { reason: event.reason, keep: event.keep };
    if (event.steered_into) turn.steeredInto = event.steered_into;
    if (event.response) this.#answer(turn, event.response);
    turn.stored = event.kept ?? (event.response ? turn.input.length + event.response.messages.length : 0);
    if (turn.started) this.#moveBehindEnded(turn); // one that never began stays where it stood
    if (!turn.revises) return undefined;
    turn.revises = false;
    return "reload";
  }

  /** Put the whole answer in place of what has come of it. What only events tell of calls stays. */
  #answer(turn, response) {
    const whole = turnOf(turn.id);
    for (const message of response.messages) addMessage(whole, message, true);
    const known = new Map(turn.pieces.map((piece) => [piece.key, piece]));
    if (whole.pieces.length) {
      const notes = turn.pieces.filter((piece) => piece.kind === "note");
      turn.pieces = [...whole.pieces.map((piece) => this.#merged(known.get(piece.key), piece)), ...notes];
    }
    turn.usage = response.usage;
    turn.model = response.model || turn.model;
    turn.output = response.output ?? turn.output;
    turn.stopReason = response.stop_reason;
    turn.limit = response.limit;
    turn.steps = Math.max(turn.steps, whole.steps);
  }

  #merged(before, piece) {
    if (!before || before.kind !== piece.kind) return this.#change(piece, {});
    if (piece.kind === "call") return this.#change(before, { arguments: piece.arguments, typed: undefined, result: piece.result ?? before.result, is_error: piece.is_error });
    return before.text === piece.text ? before : this.#change(before, { text: piece.text });
  }

  #revised(event) {
    const turn = this.#byId.get(event.turn_id);
    if (turn) turn.revises = true;
    return undefined;
  }

  #speak(turn, step, kind, text) {
    const last = turn.pieces.at(-1);
    const piece = last?.kind === kind && last.step === step ? last : this.#piece(turn, step, kind, { text: "" });
    this.#change(piece, { text: piece.text + text });
    turn.steps = Math.max(turn.steps, step);
  }

  #call(turn, event, fields = {}) {
    const key = `call ${event.call_id}`;
    let piece = turn.pieces.find((one) => one.key === key);
    if (piece?.early && event.seq) { // a snapshot told of it before the events that lead to it
      piece.early = false;
      turn.pieces = [...turn.pieces.filter((one) => one !== piece), piece];
    }
    if (!piece) turn.pieces.push((piece = { key, kind: "call", step: event.step || 1, call_id: event.call_id, name: event.name ?? "" }));
    if (event.name) piece.name = event.name;
    return this.#change(piece, fields);
  }

  #open(turn, calls, step) {
    for (const one of calls) {
      this.#call(turn, { ...one, step: step ?? turn.steps }, { arguments: one.arguments ?? {}, typed: undefined, open: { kind: one.kind ?? "approval", until: one.until, at_limit: one.at_limit ?? "reject" } });
    }
  }

  #decide(turn, decision) {
    const fields = { decision, open: null };
    if (decision.arguments) fields.arguments = decision.arguments;
    if (turn.pieces.some((one) => one.call_id === decision.call_id)) this.#call(turn, decision, fields);
  }

  #piece(turn, step, kind, fields) {
    return this.#change(addPiece(turn, step, kind, fields), {});
  }

  /** A step starts again: what was said of it comes again. Finished calls stay, and what people said. */
  #drop(turn, step) {
    const stays = (one) => one.step < step || one.kind === "note" || one.kind === "input" || (one.kind === "call" && (one.result !== undefined || one.decision || one.progress || one.customs));
    turn.pieces = turn.pieces.filter(stays);
  }

  #again(turn) {
    Object.assign(turn, { pieces: [], messages: [], stored: 0, error: null, stopped: null, settled: false, steps: 0, usage: undefined, started: undefined, ended: undefined });
    this.turns = [...this.turns.filter((one) => one !== turn), turn];
  }

  #add(id) {
    const turn = turnOf(id);
    this.#byId.set(id, turn);
    this.turns.push(turn);
    this.#touch(turn);
    return turn;
  }

  #addLoose(message) {
    const turn = turnOf("", message.id ?? `added ${this.cursor}`);
    addMessage(turn, message);
    Object.assign(turn, { status: "finished", settled: true });
    this.#touch(turn);
    this.turns.push(turn);
    this.#moveBehindEnded(turn);
    return undefined;
  }

  /** The history has turns in the order of their ends. */
  #moveBehindEnded(turn) {
    const open = this.turns.findIndex((one) => one !== turn && !ended(one));
    if (open < 0 || open > this.turns.indexOf(turn)) return;
    this.turns = this.turns.filter((one) => one !== turn);
    this.turns.splice(open, 0, turn);
  }

  #change(piece, fields) {
    return Object.assign(piece, fields, { stamp: this.#next() });
  }

  #touch(turn) {
    turn.stamp = this.#next();
  }

  #touchAll(turn) {
    for (const piece of turn.pieces) this.#change(piece, {});
    this.#touch(turn);
  }

  #next() {
    this.#stamp += 1;
    return this.#stamp;
  }
}

function turnOf(id, key = id) {
  return { key, id, status: "queued", input: [], pieces: [], messages: [], stored: 0, steps: 0, attempt: 0, stamp: 0, live: false, settled: false };
}

/** The turns that messages of a history belong to; a message without a turn stands alone. */
function turnsOf(messages) {
  const found = [];
  for (const message of messages) {
    let turn = found.at(-1);
    if (!turn || !message.turn_id || turn.id !== message.turn_id) {
      turn = turnOf(message.turn_id ?? "", message.turn_id ?? message.id);
      Object.assign(turn, { status: "finished", settled: true });
      found.push(turn);
    }
    addMessage(turn, message);
  }
  return found;
}

function addMessage(turn, message, answer = false) {
  turn.messages.push(message);
  if (message.status) turn.status = message.status;
  else turn.stored += 1;
  if (message.error) turn.error = { code: "", text: message.error };
  if (message.interrupted) turn.stopped ??= { reason: "", keep: "partial" };
  if (message.role === "user" || message.role === "system") {
    if (turn.pieces.length || answer) addPiece(turn, turn.steps + 1, "input", { message });
    else turn.input.push(message);
    turn.created ??= message.created;
    return;
  }
  if (message.role === "assistant") turn.steps += 1;
  turn.model = message.model ?? turn.model;
  for (const part of message.parts) addPart(turn, part);
  for (const decision of message.decisions ?? []) {
    const call = turn.pieces.find((one) => one.call_id === decision.call_id);
    if (call) call.decision = decision;
  }
}

function addPart(turn, part) {
  const step = turn.steps;
  if (part.type === "tool_call") {
    turn.pieces.push({ key: `call ${part.call_id}`, kind: "call", step, stamp: 0, call_id: part.call_id, name: part.name, arguments: part.arguments ?? {}, typed: part.arguments ? undefined : part.raw });
  } else if (part.type === "tool_result") {
    const call = turn.pieces.find((one) => one.call_id === part.call_id);
    if (call) Object.assign(call, { result: part.content ?? "", is_error: part.is_error ?? false });
  } else if (part.type === "text" || part.type === "refusal" || (part.type === "reasoning" && part.text)) {
    addPiece(turn, step, part.type, { text: part.text });
  } else if (part.type !== "reasoning") {
    addPiece(turn, step, part.type === "item" ? "item" : "file", { data: part.item ?? part, provider: part.provider });
  }
}

/** Its key is the same for a piece that came as an event and for the part of the message that it became. */
function addPiece(turn, step, kind, fields) {
  const place = turn.pieces.filter((one) => one.step === step && one.kind === kind).length;
  const piece = { key: `${kind} ${step}.${place}`, kind, step, stamp: 0, ...fields };
  turn.pieces.push(piece);
  return piece;
}

function sum(one = {}, other = {}) {
  const found = { ...one };
  for (const [name, value] of Object.entries(other)) if (typeof value === "number") found[name] = (found[name] ?? 0) + value;
  return found;
}
