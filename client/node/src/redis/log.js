// Following a session's events: the log says what is true, the channel that there is something new.

import { AntiphonError, StreamGap } from "../errors.js";
import { decodeEvent } from "../values.js";

/** @import { SessionEvent } from "../types.js" */
/** @import { Past } from "./past.js" */

export const PAGE = 500;
export const SILENCE_MS = 5000;

/** What a channel says beside events: that it is subscribed (again), and that nothing has come. */
export const SUBSCRIBED = Symbol("subscribed");
export const SILENCE = Symbol("silence");

/**
 * @typedef {object} Channel
 * @property {(ms: number) => Promise<string | typeof SUBSCRIBED | typeof SILENCE>} next
 * @property {() => void} reconnect
 *
 * @typedef {{ seq: number, first: number, life: string, entries: [number, string][] }} LogPage of which one transaction has
 *   read; `life` tells sessions with the same id apart, and is empty where there is none
 *
 * @typedef {(from: number, count: number) => Promise<LogPage>} ReadLog
 */

// The scripts write this at the beginning of every event.
const PLACE = /^\{"seq":(\d{1,18}),"at":(\d{1,18}),/;

/** @param {string} text */
function placeOf(text) {
  const found = PLACE.exec(text);
  return found ? { seq: Number(found[1]), at: Number(found[2]) } : { seq: NaN, at: 0 };
}

/**
 * Yield the events behind the cursor, each once and in order, without end. `past` gives what takes the place of events that
 * are no longer kept. Throws `StreamGap` where it does not know.
 *
 * @param {number} cursor
 * @param {Channel} channel
 * @param {ReadLog} readLog
 * @param {Past} [past]
 * @returns {AsyncGenerator<SessionEvent, never, undefined>}
 */
export async function* follow(cursor, channel, readLog, past) {
  const reader = new LogReader(cursor, readLog, past);
  for (;;) {
    const heard = await channel.next(SILENCE_MS);
    if (typeof heard === "string") {
      const event = reader.next(heard);
      if (event) yield event;
      if (event || reader.seen(heard)) continue;
    }
    for (let page = await reader.page(), first = true; ; page = await reader.page(), first = false) {
      if (first && page.length && heard === SILENCE) channel.reconnect();
      for (const event of reader.instead) yield reader.standAt(event.seq, event);
      for (const [seq, text] of page) yield reader.accept(seq, text);
      if (page.length < PAGE && !reader.instead.length) break;
    }
  }
}

class LogReader {
  /** @type {string | null} */
  #last = null; // the event at the cursor, once it was seen
  #life = ""; // of the session that it reads, once there was one
  /** @type {number} */
  #cursor;
  /** @type {boolean} until something was given */
  #beginning;
  /** @type {ReadLog} */
  #readLog;
  /** @type {Past | undefined} */
  #past;
  /** @type {SessionEvent[]} what takes the place of events that are no longer kept, before the page that was read */
  instead = [];

  /** @param {number} cursor @param {ReadLog} readLog @param {Past} [past] */
  constructor(cursor, readLog, past) {
    [this.#cursor, this.#beginning, this.#readLog, this.#past] = [cursor, past?.beginning ?? false, readLog, past];
  }

  /** Go on behind an event that the log does not have. @template T @param {number} seq @param {T} event */
  standAt(seq, event) {
    [this.#cursor, this.#last, this.#beginning] = [seq, null, this.#beginning && !seq];
    return event;
  }

  /** What takes the place of missing events. Whether the log is to be read again after that. @param {number} newest @param {number} oldest @param {boolean} known whether the session was there before */
  async #readPast(newest, oldest, known) {
    const cursor = this.#cursor;
    this.instead = [];
    if (!this.#past || !this.#life || cursor >= newest || oldest <= cursor + 1 || !(cursor || this.#beginning || known)) return false;
    const found = await this.#past.after(cursor, oldest, this.#beginning);
    if (found && !found.length) this.standAt(oldest - 1, undefined);
    this.instead = found ?? [];
    return this.instead.length > 0;
  }

  /** The event of a message from the channel, if it is the one behind the cursor. The first one may be of a later session. @param {string} text */
  next(text) {
    const { seq, at } = placeOf(text);
    if (!this.#life || !this.#cursor || seq !== this.#cursor + 1 || at < this.#at) return undefined;
    try {
      return this.accept(seq, text);
    } catch {
      return undefined; // the log decides
    }
  }

  /** Whether a message from the channel was given before. @param {string} text */
  seen(text) {
    const { seq, at } = placeOf(text);
    return seq <= this.#cursor && (at < this.#at || text === this.#last);
  }

  /** @param {number} seq @param {string} text @returns {SessionEvent} */
  accept(seq, text) {
    const event = decoded(seq, text);
    [this.#cursor, this.#last, this.#beginning] = [seq, text, false];
    return event;
  }

  /** A page of the log behind the cursor. Throws `StreamGap` if it does not go on there. @returns {Promise<[number, string][]>} */
  async page() {
    const { seq, first, life, entries } = await this.#readLog(Math.max(this.#cursor, 1), PAGE + 1);
    if (this.#life && life !== this.#life) throw gap(life ? "The session began anew" : "The session has ended", { cursor: this.#cursor, oldest: null });
    const known = Boolean(this.#life);
    this.#life = life;
    if (await this.#readPast(seq, entries[0]?.[0] ?? seq + 1, known)) return [];
    this.#cursor ||= first;
    const cursor = this.#cursor;
    const here = entries[0]?.[0] === cursor ? /** @type {[number, string]} */ (entries.shift())[1] : null;
    const oldest = entries[0]?.[0] ?? null;
    const where = { cursor, oldest };
    if (seq < cursor) throw gap(`There is no event ${cursor}; the session's last event is ${seq}`, where);
    if (here !== null && this.#last !== null && here !== this.#last) {
      throw gap(`The session began anew: event ${cursor} is a different one now`, where);
    }
    if (seq > cursor && oldest !== cursor + 1) throw gap(`Events after ${cursor} are no longer kept`, where);
    this.#last ??= here;
    return entries.slice(0, PAGE);
  }

  get #at() {
    return this.#last === null ? 0 : placeOf(this.#last).at;
  }
}

/** @param {number} seq @param {string} text */
function decoded(seq, text) {
  try {
    const event = decodeEvent(text);
    if (event.seq === seq) return event;
  } catch (error) {
    if (!(error instanceof AntiphonError) || error.code === "key_missing") throw error;
  }
  const message = `Event ${seq} cannot be read: go on behind it with the cursor ${seq}.`;
  throw new AntiphonError(message, { code: "corrupt_record" });
}

/** @param {string} what @param {{ cursor: number, oldest: number | null }} where */
const gap = (what, where) => new StreamGap(`${what}: take a snapshot, and go on after its cursor.`, where);
