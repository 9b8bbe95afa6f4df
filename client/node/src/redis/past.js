// What a reader with an old cursor gets in place of events that are no longer kept: the messages that they brought.

import { decodeEvent, decodeMessage } from "../values.js";

/** @import { Connection } from "./connection.js" */
/** @import { Message, SessionEvent } from "../types.js" */
/** @import { Cell } from "./client.js" */

const PAGE = 200;
const TURNS_AT_ONCE = 100;
const FULL = "ends:";
const ENDED = new Set(["finished", "failed", "cancelled"]);

/**
 * @typedef {{ seq: number, start: number, stop: number }} Piece the messages that came with an event
 * @typedef {{ cutAt: number, kept: number, pieces: Piece[] }} Missed
 * @typedef {{ cursor: number, before: number, noted: string, missed: Missed, queued: SessionEvent[] }} Plan
 */

/**
 * What came after one event and before another, of a history of `length` messages. `ends` notes with which events it grew
 * or was cut. With `beginning`, the reader has seen nothing. Undefined if that is not noted, or messages are lost.
 *
 * @param {{ ends: string, first: number, length: number, cursor: number, before: number, beginning?: boolean }} asked
 * @returns {Missed | undefined}
 */
export function missed({ ends, first, length, cursor, before, beginning = false }) {
  const noted = [...ends.matchAll(/(\d+)([:~])(\d+) /g)].map(([, seq, mark, size]) => ({ seq: Number(seq), mark, size: Number(size) }));
  const begins = noted[0]?.mark === "~" ? /** @type {{ seq: number, size: number }} */ (noted.shift()) : { seq: first, size: 0 };
  if (!beginning && (cursor < begins.seq || (length && !noted.length && !begins.size))) return undefined;
  /** @type {Piece[]} */
  const pieces = begins.size ? [{ seq: begins.seq, start: 0, stop: begins.size }] : [];
  let [top, low, cutAt] = [begins.size, beginning ? 0 : begins.size, 0];
  for (const { seq, size } of noted) {
    if (size > top) pieces.push({ seq, start: top, stop: size });
    while ((pieces.at(-1)?.start ?? -1) >= size) pieces.pop();
    const newest = pieces.at(-1);
    if (newest) newest.stop = Math.min(newest.stop, size);
    top = size;
    if (seq <= cursor && !beginning) low = size;
    else if (size < low) [low, cutAt] = [size, cutAt && seq >= before ? cutAt : seq];
  }
  if (length < top) return undefined;
  const last = noted.at(-1);
  if (length > top && (!last || last.seq < before)) pieces.push({ seq: before - 1, start: top, stop: length }); // by an older release
  const opening = beginning && before - 1 !== begins.seq ? pieces.filter(({ seq }) => seq <= begins.seq) : [];
  const given = opening.map((one) => ({ ...one, seq: Math.min(one.seq, before - 1) }));
  given.push(...pieces.filter(({ seq }) => Math.max(cursor, begins.seq) < seq && seq < before));
  return { cutAt: cutAt < before ? cutAt : 0, kept: low, pieces: merged(given) };
}

/** One piece for each event. @param {Piece[]} pieces */
function merged(pieces) {
  /** @type {Piece[]} */
  const found = [];
  for (const one of pieces) {
    const last = found.at(-1);
    if (last?.seq === one.seq) found[found.length - 1] = { ...last, stop: one.stop };
    else found.push(one);
  }
  return found;
}

/** The past of a session for one reader of it. */
export class Past {
  /** @type {Connection} */
  #connection;
  /** @type {Cell["keys"]} */
  #keys;
  /** @type {string} */
  #session;
  /** @type {AbortSignal} */
  #signal;
  /** @type {Plan | undefined} */
  #plan;
  #opened = false; // whether the reader has what the session began with

  /** @param {Connection} connection @param {Cell["keys"]} keys @param {string} session @param {AbortSignal} signal @param {boolean} beginning whether its reader has seen nothing of the session */
  constructor(connection, keys, session, signal, beginning) {
    this.beginning = beginning;
    [this.#connection, this.#keys, this.#session, this.#signal] = [connection, keys, session, signal];
  }

  /**
   * A page of what takes the place of the events between two others, or nothing; undefined if that is not known.
   *
   * @param {number} cursor @param {number} before @param {boolean} beginning
   * @returns {Promise<SessionEvent[] | undefined>}
   */
  async after(cursor, before, beginning) {
    for (;;) {
      if (this.#plan?.cursor !== cursor || this.#plan.before !== before) {
        this.#plan = await this.#planned(cursor, before, beginning && !this.#opened);
      }
      if (!this.#plan) return undefined;
      const events = await this.#page(this.#plan);
      if (events) {
        this.#plan.cursor = events.at(-1)?.seq ?? cursor;
        return events;
      }
      this.#plan = undefined; // the session has changed since
    }
  }

  /** @param {number} cursor @param {number} before @param {boolean} beginning @returns {Promise<Plan | undefined>} */
  async #planned(cursor, before, beginning) {
    const [flat, length] = await this.#read(["HGETALL", this.#keys.session(this.#session)], ["LLEN", this.#keys.history(this.#session)]);
    const fields = fieldsOf(flat);
    if (!fields.created) return undefined;
    const full = Object.keys(fields).filter((name) => name.startsWith(FULL));
    full.sort((one, other) => Number(one.slice(FULL.length)) - Number(other.slice(FULL.length)));
    const ends = [...full, "ends"].map((name) => fields[name] ?? "").join("");
    const found = missed({ ends, first: Number(fields.first || 0), length, cursor, before, beginning });
    return found && { cursor, before, noted: fields.ends ?? "", missed: found, queued: await this.#queued(cursor, before) };
  }

  /** Turns that were submitted in between, and whose end is still to come. @param {number} cursor @param {number} before */
  async #queued(cursor, before) {
    /** @type {SessionEvent[]} */
    const found = [];
    for (let newest = 0; newest < 1000; newest += TURNS_AT_ONCE) {
      const [ids] = await this.#read(["LRANGE", this.#keys.turns(this.#session), String(-newest - TURNS_AT_ONCE), String(-newest - 1)]);
      if (!ids.length) break;
      const records = await this.#read(...ids.map((/** @type {string} */ id) => ["HGETALL", this.#keys.turn(id)]));
      const open = records
        .map((/** @type {any} */ flat, /** @type {number} */ at) => /** @type {Record<string, string>} */ ({ ...fieldsOf(flat), id: ids[at] }))
        .filter((/** @type {any} */ { status, deleted, last_seq: last }) => status && !deleted && (!ENDED.has(status) || Number(last) >= before));
      const missing = open.filter((/** @type {any} */ { queued_seq: seq }) => cursor < Number(seq) && Number(seq) < before);
      found.push(...missing.map((/** @type {Record<string, string>} */ one) => this.#queuedEvent(one)));
      if (!open.length) break;
    }
    return found.sort((one, other) => one.seq - other.seq);
  }

  /** @param {Record<string, string>} turn */
  #queuedEvent({ id, queued_seq: seq, queued_at: at, run, position, request }) {
    const place = { seq: Number(seq), at: Number(at), session_id: this.#session, turn_id: id, run: Number(run) };
    const input = JSON.parse(request || "{}").messages ?? [];
    return decodeEvent(JSON.stringify({ type: "turn_queued", ...place, position: Number(position), input }));
  }

  /** @param {Plan} plan @returns {Promise<SessionEvent[] | undefined>} */
  async #page(plan) {
    const { cutAt, kept, pieces } = plan.missed;
    if (cutAt) {
      const last = kept ? await this.#messages(kept - 1, kept, plan.noted) : [];
      if (!last) return undefined;
      plan.missed.cutAt = 0;
      const more = kept ? { type: "history_rewound", kept, message_id: last[0]?.id ?? "" } : { type: "history_cleared" };
      return [this.#event(cutAt, more)];
    }
    /** @type {SessionEvent[]} */
    const events = [];
    const [first] = pieces;
    const taken = pieces.filter(({ stop }) => stop - (first?.start ?? 0) <= PAGE);
    const stop = taken.at(-1)?.stop ?? Math.min(first?.stop ?? 0, (first?.start ?? 0) + PAGE);
    const messages = first ? await this.#messages(first.start, stop, plan.noted) : [];
    if (!messages) return undefined;
    for (const one of taken.length ? taken : first ? [{ ...first, stop }] : []) {
      const said = messages.slice(one.start - (first?.start ?? 0), one.stop - (first?.start ?? 0));
      const whole = one.stop === pieces[0]?.stop;
      const turns = new Set(said.map((message) => message.turn_id ?? ""));
      const seq = whole ? one.seq : (events.at(-1)?.seq ?? plan.cursor);
      const more = { type: "message", turn_id: turns.size === 1 ? [...turns][0] : "", messages: said };
      events.push(this.#event(seq, { at: said.at(-1)?.created ?? 0, ...more }));
      if (whole) this.#opened ||= one.seq === (events.at(-2)?.seq ?? plan.cursor);
      if (whole) pieces.shift();
      else pieces[0] = { ...one, start: one.stop, stop: first?.stop ?? one.stop };
    }
    const until = pieces.length ? (events.at(-1)?.seq ?? plan.cursor) : plan.before;
    while (plan.queued[0] && plan.queued[0].seq <= until) events.push(/** @type {SessionEvent} */ (plan.queued.shift()));
    return events.sort((one, other) => one.seq - other.seq);
  }

  /** @param {number} seq @param {Record<string, any>} more */
  #event(seq, more) {
    return decodeEvent(JSON.stringify({ seq, session_id: this.#session, ...more }));
  }

  /** A page of the history; undefined if the session has changed. @param {number} start @param {number} stop @param {string} noted @returns {Promise<Message[] | undefined>} */
  async #messages(start, stop, noted) {
    const [[now], page] = await this.#read(
      ["HMGET", this.#keys.session(this.#session), "ends"],
      ["LRANGE", this.#keys.history(this.#session), String(start), String(stop - 1)],
    );
    return (now ?? "") === noted ? page.map(decodeMessage) : undefined;
  }

  /** @param {...string[]} commands @returns {Promise<any[]>} */
  #read(...commands) {
    return this.#connection.transaction(commands, this.#signal);
  }
}

/** The fields of a hash, which some clients return as an object. @param {any} flat @returns {Record<string, string>} */
function fieldsOf(flat) {
  if (!Array.isArray(flat)) return flat instanceof Map ? Object.fromEntries(flat) : (flat ?? {});
  return Object.fromEntries(flat.flatMap((value, at) => (at % 2 ? [] : [[value, flat[at + 1]]])));
}
