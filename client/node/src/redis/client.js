// Turns and sessions straight from Redis, by the protocol. A job asks for a turn; the log and the history tell of it.

import { NotFound, Refused, ResultTimeout, StreamGap, TurnCancelled, TurnFailed, UsageError } from "../errors.js";
import { EventStream } from "../event_stream.js";
import { decodeEvent, decodeMessage, decodeResponse, readable, isTerminal } from "../values.js";
import { linked, sleep } from "../waiting.js";
import { Connection } from "./connection.js";
import { Feed } from "./feed.js";
import { SILENCE_MS, follow } from "./log.js";
import { cellHash, cellOf, keysOf, newTurnId, turnIdOfKey } from "./names.js";
import { Past } from "./past.js";
import { jobData, submitCommand } from "./submission.js";

/** @import { Follow, Wait } from "../client.js" */
/** @import { Message, Response, SessionEvent, Status, TurnOptions } from "../types.js" */
/** @import { LogPage } from "./log.js" */

/**
 * @typedef {object} RedisOptions
 * @property {string} [prefix] of the keys; `ant`
 * @property {string} [queue] for turns that name none; `antiphon`
 * @property {number} [patience] for how many seconds a call is repeated while Redis cannot be reached; 10
 *
 * @typedef {TurnOptions & { queue?: string }} JobOptions
 *
 * @typedef {{ connection: Connection, feed: Feed, keys: ReturnType<typeof keysOf> }} Cell
 *
 * @typedef {object} TurnRecord
 * @property {Status} status
 * @property {string} session
 * @property {Record<string, string>} fields
 */

const TERMINAL = new Set(["finished", "failed", "cancelled"]);
const FIELDS = [
  "status", "session", "run", "attempt", "queued_seq", "first_seq", "last_seq", "ended_at", "response", "error_code",
  "error", "service", "steered_into", "deleted", "tenant", "created",
];
const JOB_FIELDS = ["status", "exc_info"];
const FIRST_LOOK_MS = 20;
const LAST_LOOK_MS = 1000;

/**
 * Submits turns and follows sessions in Redis, without a gateway.
 *
 *     const redis = await createClient({ url: "redis://localhost:6379/0" }).connect();
 *     const client = new RedisClient(redis);
 *     const turn = await client.submit("user-123", "Hello", { agent: "assistant" });
 *     console.log((await turn.result()).text);
 *
 * It takes a connected client of `redis` (node-redis) or `ioredis`, or one for each cell, and sends its commands there;
 * that client stays yours to close. While something is followed, there is a second connection, for its channels.
 */
export class RedisClient {
  #cells;
  #queue;
  #prefix;

  /** @param {any} redis a client, or a list of clients @param {RedisOptions} [options] */
  constructor(redis, { prefix = "ant", queue = "antiphon", patience = 10 } = {}) {
    const connections = [redis].flat().map((/** @type {any} */ one) => new Connection(one, patience));
    if (!connections.length) throw new UsageError("At least one Redis is needed.", { code: "settings" });
    const keys = keysOf(prefix);
    /** @type {Map<string, Cell>} */
    this.#cells = new Map(connections.map((connection) => [connection.driver.name, { connection, feed: new Feed(connection.driver), keys }]));
    this.#queue = queue;
    this.#prefix = prefix;
  }

  /**
   * Submit a turn. When this returns, its job is stored. The same `key` in the same session is the same turn; what else
   * was given the first time counts.
   *
   * @param {string} session
   * @param {string} text
   * @param {JobOptions} [options]
   */
  async submit(session, text, { key, queue = this.#queue, signal, ...options } = {}) {
    check(session);
    const id = key === undefined || key === null ? newTurnId(session) : turnIdOfKey(session, key, this.#prefix);
    const cell = this.#cellOf(cellHash(session));
    await cell.connection.command(submitCommand(cell.keys, id, queue, jobData(session, text, options)), signal);
    return new RedisTurn(cell, id);
  }

  /** A session, which need not exist yet. @param {string} id */
  session(id) {
    return new RedisSession(this.#cellOf(cellHash(check(id))), id);
  }

  /** A turn of which only the id is known. @param {string} id */
  turn(id) {
    return new RedisTurn(this.#cellOf(id.slice(0, 10)), id);
  }

  /** @param {string} hash @returns {Cell} */
  #cellOf(hash) {
    return /** @type {Cell} */ (this.#cells.get(cellOf([...this.#cells.keys()], hash)));
  }
}

/** One conversation. */
export class RedisSession {
  #cell;

  /** @param {Cell} cell @param {string} id */
  constructor(cell, id) {
    this.id = id;
    this.#cell = cell;
  }

  /**
   * The whole history, the turn that is the current one, and the cursor from which all of it can be followed.
   *
   * @param {{ signal?: AbortSignal }} [options]
   * @returns {Promise<{ session_id: string, messages: Message[], cursor: number, turn_id: string | null }>}
   */
  async snapshot({ signal } = {}) {
    const { connection, keys } = this.#cell;
    for (;;) {
      const before = await connection.command(["LINDEX", keys.inbox(this.id), "0"], signal);
      const [history, seq, head, first] = await connection.transaction(
        [
          ["LRANGE", keys.history(this.id), "0", "-1"],
          ["HGET", keys.session(this.id), "seq"],
          ["LINDEX", keys.inbox(this.id), "0"],
          ...(before === null ? [] : [["HGET", keys.turn(before), "first_seq"]]),
        ],
        signal,
      );
      if (head !== before) continue;
      return { session_id: this.id, messages: history.map(decodeMessage), cursor: snapshotCursor(seq, first), turn_id: head };
    }
  }

  /**
   * Follow the session without end. Without a cursor this begins where a snapshot does: with the first event of the
   * running turn. In place of events that are no longer kept, `message` events bring the messages of each turn. Throws
   * `StreamGap` if the session was recreated, or its history does not reach back to the cursor.
   *
   * @param {Follow} [options]
   */
  events({ after, types, signal } = {}) {
    const [cell, id, snapshot] = [this.#cell, this.id, this.snapshot.bind(this)];
    return new EventStream(
      async function* (stop) {
        const cursor = after ?? (await snapshot({ signal: stop })).cursor;
        const past = new Past(cell.connection, cell.keys, id, stop, after === 0);
        yield* only(types, followSession(cell, id, cursor, stop, past));
      },
      after,
      signal,
    );
  }
}

/** One turn, which goes on whoever follows it. */
export class RedisTurn {
  #cell;

  /** @param {Cell} cell @param {string} id */
  constructor(cell, id) {
    this.id = id;
    this.#cell = cell;
  }

  /** `submitted` until a worker has taken the job. Throws `Refused` if it refused it, and `NotFound`. @returns {Promise<Status | "submitted">} */
  async status() {
    return (await this.#record())?.status ?? "submitted";
  }

  /**
   * Wait for the end of the turn. Throws `TurnFailed` with the code of the error, `TurnCancelled`, `Refused` if the
   * workers refuse the job, or `ResultTimeout` after `timeout` seconds: the turn goes on, and one may wait again.
   *
   * @param {Wait} [options]
   * @returns {Promise<Response>}
   */
  async result({ timeout = Infinity, signal } = {}) {
    const late = () => new ResultTimeout(`The turn has not ended within ${timeout} s; it goes on.`, { code: "result_timeout", turnId: this.id });
    const link = linked(signal, timeout, late);
    try {
      const record = await this.#ended(link.signal);
      const into = record.fields.steered_into;
      return into ? await new RedisTurn(this.#cell, into).result({ signal: link.signal }) : responseIn(this.id, record);
    } finally {
      link.close();
    }
  }

  /**
   * The events of the turn, from the first one that is kept or after a cursor, up to the one that ends it. If an ended
   * turn's events are no longer kept, only the last one comes. Throws `StreamGap` if a running turn's are not, and
   * `Refused` if the workers refuse the job.
   *
   * @param {Follow} [options]
   */
  events({ after, types, signal } = {}) {
    return new EventStream((stop) => only(types, this.#events(after, stop)), after, signal);
  }

  /** @param {number | undefined} after @param {AbortSignal} signal @returns {AsyncGenerator<SessionEvent, void, undefined>} */
  async *#events(after, signal) {
    let record = await this.#accepted(signal);
    if (after !== undefined && TERMINAL.has(record.status) && after >= number(record.fields.last_seq)) return;
    for (let cursor = after ?? Math.max(number(record.fields.queued_seq) - 1, 0); ; ) {
      try {
        for await (const event of followSession(this.#cell, record.session, cursor, signal)) {
          cursor = event.seq;
          if (event.turn_id !== this.id) continue;
          yield event;
          if (isTerminal(event) && event.run >= number(record.fields.run)) return;
        }
      } catch (error) {
        if (!(error instanceof StreamGap)) throw error;
        record = await this.#accepted(signal);
        const begins = number(record.fields.first_seq || record.fields.last_seq) - 1;
        if (begins <= cursor && !TERMINAL.has(record.status)) throw error;
        if (begins <= cursor) return yield terminalEvent(this.id, record);
        cursor = begins; // what is missing was before the turn began
      }
    }
  }

  /** The record of the turn once it has ended. @param {AbortSignal} signal */
  async #ended(signal) {
    const { session } = await this.#accepted(signal);
    const { connection, feed, keys } = this.#cell;
    const listening = linked(signal);
    const channel = feed.listen(keys.live(connection.driver.database, session), listening.signal);
    try {
      for (;;) {
        const heard = await channel.next(SILENCE_MS);
        if (typeof heard === "string" && !this.#isEnd(heard)) continue;
        const record = await this.#accepted(signal);
        if (TERMINAL.has(record.status)) return record;
      }
    } finally {
      listening.close();
    }
  }

  /** Whether a published event ends this turn. @param {string} text */
  #isEnd(text) {
    return text.includes(`"turn_id":"${this.id}"`) && /"type":"turn_(finished|failed|cancelled)"/.test(text);
  }

  /** The record of the turn once a worker has taken its job. @param {AbortSignal} signal */
  async #accepted(signal) {
    for (let ms = FIRST_LOOK_MS; ; ms = Math.min(ms * 2, LAST_LOOK_MS)) {
      const record = await this.#record(signal);
      if (record) return record;
      await sleep(ms, signal);
    }
  }

  /** The turn as it stands in Redis; undefined while its job waits. @param {AbortSignal} [signal] @returns {Promise<TurnRecord | undefined>} */
  async #record(signal) {
    const { connection, keys } = this.#cell;
    const [values, job, erasing] = await connection.transaction(
      [["HMGET", keys.turn(this.id), ...FIELDS], ["HMGET", keys.job(this.id), ...JOB_FIELDS], ["EXISTS", keys.erasing]],
      signal,
    );
    const record = recordOf(this.id, named(FIELDS, values), named(JOB_FIELDS, job));
    if (record && Number(erasing)) await this.#refuseErased(record, signal);
    return record;
  }

  /** Refuse a turn of a deleted session that a worker has still to erase. @param {TurnRecord} record @param {AbortSignal} [signal] */
  async #refuseErased({ session, fields }, signal) {
    const { connection, keys } = this.#cell;
    const [marks, deleted, listed] = await connection.transaction(
      [
        ["HMGET", keys.erasing, session, `${session}\x1f${fields.tenant}`],
        ["HGET", keys.turn(this.id), "deleted"],
        ["LPOS", keys.turns(session), this.id],
      ],
      signal,
    );
    const before = number(fields.created) < Math.max(...marks.map(number));
    if (deleted || (before && listed === null)) throw deletedTurn(this.id);
  }
}

/** @param {string[]} names @param {(string | null)[]} values @returns {Record<string, string>} */
const named = (names, values) => Object.fromEntries(names.map((name, place) => [name, values[place] ?? ""]));

/** @param {string} id */
const deletedTurn = (id) => new NotFound("The turn was deleted with its session.", { code: "turn_deleted", turnId: id });

/**
 * What the record of a turn and its job say; undefined while the job waits. Throws `Refused` and `NotFound`.
 *
 * @param {string} id
 * @param {Record<string, string>} fields
 * @param {Record<string, string>} job
 * @returns {TurnRecord | undefined}
 */
export function recordOf(id, fields, job) {
  if (fields.deleted) throw deletedTurn(id);
  if (fields.status) return { status: /** @type {Status} */ (fields.status), session: fields.session ?? "", fields };
  if (!job.status) throw new NotFound("The turn does not exist or has expired.", { code: "turn_not_found", turnId: id });
  if (job.status === "failed") throw new Refused(job.exc_info || "The workers refused the job.", { code: "refused", turnId: id });
  return undefined;
}

/** The response of a turn that has ended. Throws `TurnFailed` and `TurnCancelled`. @param {string} id @param {TurnRecord} record */
export function responseIn(id, { status, session, fields }) {
  if (status === "finished") return decodeResponse(fields.response || "{}");
  const where = { turnId: id, sessionId: session };
  if (status === "cancelled") throw new TurnCancelled(readable(fields.error, "The turn was cancelled."), { code: "turn_cancelled", ...where });
  throw new TurnFailed(readable(fields.error, "The turn failed."), { code: fields.error_code || "turn_failed", ...where });
}

/** The cursor of a snapshot. @param {string | null} seq @param {string | null} [first] the `first_seq` of the current turn */
export const snapshotCursor = (seq, first) => (first ? Number(first) - 1 : number(seq));

/** @param {Cell} cell @param {string} session @param {number} cursor @param {AbortSignal} signal @param {Past} [past] */
async function* followSession({ connection, feed, keys }, session, cursor, signal, past) {
  const listening = linked(signal);
  try {
    const channel = feed.listen(keys.live(connection.driver.database, session), listening.signal);
    yield* follow(cursor, channel, (from, count) => readLog(connection, keys, session, from, count, signal), past);
  } finally {
    listening.close();
  }
}

/** @param {Connection} connection @param {Cell["keys"]} keys @param {string} session @param {number} from @param {number} count @param {AbortSignal} signal @returns {Promise<LogPage>} */
async function readLog(connection, keys, session, from, count, signal) {
  const [[seq, first, created, life], entries] = await connection.transaction(
    [
      ["HMGET", keys.session(session), "seq", "first", "created", "life"],
      ["XRANGE", keys.events(session), `${from}-0`, "+", "COUNT", String(count)],
    ],
    signal,
  );
  const places = entries.map((/** @type {[string, string[]]} */ [id, fields]) => [parseInt(id, 10), fields[fields.indexOf("e") + 1]]);
  return { seq: number(seq), first: number(first), life: (created && (life || created)) || "", entries: places };
}

/** @param {readonly string[] | undefined} types @param {AsyncGenerator<SessionEvent, void, undefined>} events */
async function* only(types, events) {
  for await (const event of events) if (!types || types.includes(event.type)) yield event;
}

/** The last event of a turn whose events are no longer kept. @param {string} id @param {TurnRecord} record */
function terminalEvent(id, { status, session, fields }) {
  const said = {
    finished: () => (fields.steered_into ? { steered_into: fields.steered_into } : { response: JSON.parse(fields.response || "{}") }),
    failed: () => ({ code: fields.error_code, message: fields.error, ...(fields.service ? { service: JSON.parse(fields.service) } : {}) }),
    cancelled: () => ({ reason: fields.error }),
  };
  const [type, more] = [`turn_${status}`, said[/** @type {keyof typeof said} */ (status)]()];
  const place = { seq: number(fields.last_seq), at: number(fields.ended_at), run: number(fields.run), attempt: number(fields.attempt) };
  return decodeEvent(JSON.stringify({ ...place, type, session_id: session, turn_id: id, ...more }));
}

/** @param {string | null | undefined} text */
const number = (text) => Number(text || 0);

/** @param {string} session */
function check(session) {
  const size = new TextEncoder().encode(session).length;
  if (size < 1 || size > 200 || /[\u0000-\u001f\u007f-\u009f]/.test(session) || !session.isWellFormed()) {
    throw new UsageError("The id of a session is 1 to 200 bytes of text without control characters.", { code: "invalid_id" });
  }
  return session;
}
