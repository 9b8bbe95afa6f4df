// The client of a gateway. It needs `fetch` and streams alone: Node and browsers have both.

import { AlreadyDecided, NotFound, ResultTimeout, TurnCancelled, TurnFailed } from "./errors.js";
import { EventStream } from "./event_stream.js";
import { follow, followMany } from "./follow.js";
import { OPERATIONS } from "./generated.js";
import { Http, path } from "./http.js";
import { withDefaults } from "./values.js";
import { linked } from "./waiting.js";

/** @import { ClientOptions, Asked } from "./http.js" */
/** @import { FilePart, HistoryPage, HistoryQuery, ImagePart, Input, JsonObject, Keep, Message, Operations, Response, Snapshot, Status, SubmitOptions, TurnInfo } from "./types.js" */

/**
 * @typedef {object} Follow
 * @property {number} [after] the `seq` of the last event seen; 0 for all that are kept
 * @property {readonly string[]} [types] only events of these types
 * @property {AbortSignal} [signal]
 *
 * @typedef {object} FollowMany
 * @property {readonly string[]} [sessions] all events of these, up to 100; without it, the ends of all turns
 * @property {string} [after] the `cursor` of an earlier stream of the same sessions; "0" for all that are kept: ends are from their first reader on
 * @property {readonly string[]} [types] only events of these types
 * @property {string} [tenant] for a key of every tenant: only this one's sessions
 * @property {AbortSignal} [signal]
 *
 * @typedef {object} Wait
 * @property {number} [timeout] seconds; without it, as long as it takes
 * @property {AbortSignal} [signal]
 *
 * @typedef {{ reason?: string, keep?: Keep }} CancelOptions
 */

const WAIT_SECONDS = 25;
const GRACE_SECONDS = 1; // in which the gateway itself says that the turn goes on
const KEY_BYTES = 16;

/**
 * Submits turns to a gateway and follows them.
 *
 *     const client = new Client("https://ai.example.com", { key: "antk_…" });
 *     const turn = await client.submit("user-123", "Hello", { agent: "assistant" });
 *     for await (const event of turn.events()) if (event.type === "text_delta") write(event.text);
 *
 * A call is repeated for `patience` seconds while the gateway cannot be reached or is overloaded; repeating harms
 * nothing. Then it throws `Unavailable`. The client holds no connection of its own: there is nothing to close.
 */
export class Client {
  /** @param {string | URL} url where the gateway is, with the path where it is mounted @param {ClientOptions} [options] */
  constructor(url, options = {}) {
    this.http = new Http(url, options);
  }

  /**
   * Submit a turn. When this returns, the turn is stored and will run. The input is text, parts or messages. The same
   * `key` in the same session is the same turn.
   *
   * @param {string} session
   * @param {Input} input
   * @param {SubmitOptions} [options]
   * @returns {Promise<Turn>}
   */
  async submit(session, input, { signal, key = randomKey(), ...options } = {}) {
    const body = { input, key, ...options };
    const made = await this.http.json("POST", path("sessions", session, "turns"), { body, signal });
    return new Turn(this.http, made.turn_id, made.session_id);
  }

  /** A session, which need not exist yet. @param {string} id */
  session(id) {
    return new Session(this, id);
  }

  /** A turn of which only the id is known. @param {string} id */
  turn(id) {
    return new Turn(this.http, id);
  }

  /** Turns that wait for decisions, the one that waits longest first. @param {{ limit?: number, tenant?: string }} [query] @returns {Promise<TurnInfo[]>} */
  async waiting(query) {
    return (await this.http.json("GET", "/waiting", { query })).turns;
  }

  /**
   * Follow many sessions in one stream, without end: all events of `sessions`, or the ends of all turns that the key may
   * read (`turn_finished`, `turn_failed`, `turn_cancelled` and `turn_suspended`). Without a cursor only new events come,
   * from when the gateway has answered. The events of each session come in its order. Throws `StreamGap` if events
   * after the cursor are no longer kept.
   *
   * @param {FollowMany} [options]
   * @returns {EventStream<string>}
   */
  events({ sessions, after, types, tenant, signal } = {}) {
    let place = after ?? "";
    return new EventStream(
      (stop) => followMany(this.http, { after, sessions, types, tenant, signal: stop }, (one) => (place = one)),
      after,
      signal,
      () => place,
    );
  }

  /**
   * Call an operation of the gateway by its name: parts of the path, the query and the body are fields of `asked`.
   *
   * @template {keyof Operations} T
   * @param {T} name
   * @param {Operations[T]["asked"]} asked
   * @param {{ signal?: AbortSignal }} [options]
   * @returns {Promise<Operations[T]["answer"]>}
   */
  call(name, asked, { signal } = {}) {
    const { method, route, query, body } = OPERATIONS[name];
    const rest = /** @type {Record<string, any>} */ ({ ...asked });
    const taken = (/** @type {string} */ field) => {
      const { [field]: value } = rest;
      delete rest[field];
      return value;
    };
    const address = path(...route.slice(1).split("/").map((part) => (part[0] === "{" ? taken(part.slice(1, -1)) : part)));
    const headers = method === "POST" && rest.key === undefined ? { "idempotency-key": randomKey() } : undefined;
    const search = Object.fromEntries(query.map((field) => [field, taken(field)]));
    return this.http.json(method, address, { query: search, body: body ? rest : undefined, headers, signal });
  }

  /**
   * Any other request to the gateway, with its errors. `once` keeps it from being repeated.
   *
   * @param {string} method
   * @param {string} address such as `/sessions`, percent-encoded
   * @param {Asked} [asked]
   * @returns {Promise<any>}
   */
  request(method, address, asked) {
    return this.http.json(method, address, asked);
  }
}

/** One conversation. */
export class Session {
  #http;
  #client;

  /** @param {Client} client @param {string} id */
  constructor(client, id) {
    this.id = id;
    this.#client = client;
    this.#http = client.http;
  }

  /** @param {Input} input @param {SubmitOptions} [options] */
  submit(input, options) {
    return this.#client.submit(this.id, input, options);
  }

  /** The last messages, the pending turns and the cursor to go on from, at one moment. @param {{ last?: number, signal?: AbortSignal }} [options] @returns {Promise<Snapshot>} */
  snapshot({ last, signal } = {}) {
    return this.#http.json("GET", path("sessions", this.id, "snapshot"), { query: { last }, signal });
  }

  /** A page of the history: the last 100 messages, unless `start` and `stop` say otherwise. @param {HistoryQuery} [query] @returns {Promise<HistoryPage>} */
  history(query) {
    return this.#http.json("GET", path("sessions", this.id, "messages"), { query: { ...query } });
  }

  /**
   * Follow the session without end. Without a cursor this begins where a snapshot does: with the first event of the
   * running turn. In place of events that are no longer kept, `message` events bring the messages of each turn. Throws
   * `StreamGap` if the session was recreated, or its history does not reach back to the cursor.
   *
   * @param {Follow} [options]
   */
  events({ after, types, signal } = {}) {
    const [http, id, snapshot] = [this.#http, this.id, this.snapshot.bind(this)];
    return new EventStream(
      async function* (stop) {
        const cursor = after ?? (await snapshot({ last: 0, signal: stop })).cursor;
        yield* follow(http, path("sessions", id, "events"), { after: cursor, types, signal: stop });
      },
      after,
      signal,
    );
  }

  /**
   * Cancel the turn that runs now, as a stop button does. What has been said stays, unless `keep` says otherwise.
   * Returns `cancelled`, `requested` (a worker ends it now), or null: nothing ran.
   *
   * @param {CancelOptions} [options]
   * @returns {Promise<string | null>}
   */
  async cancel(options = {}) {
    return (await this.#http.json("POST", path("sessions", this.id, "cancel"), { body: options })).outcome;
  }

  /**
   * Store a file in the session, and return it for use in messages. A repetition stores nothing twice.
   *
   * @param {Blob | ArrayBuffer | Uint8Array<ArrayBuffer>} content
   * @param {{ name?: string, mediaType?: string, signal?: AbortSignal }} [options]
   * @returns {Promise<ImagePart | FilePart>}
   */
  async addFile(content, { name, mediaType, signal } = {}) {
    const type = mediaType ?? (content instanceof Blob ? content.type : "");
    const asked = { query: { name }, content: new Blob([content], { type }), signal };
    return (await this.#http.json("POST", path("sessions", this.id, "files"), asked)).files[0];
  }

  /** The content of a stored file. @param {string} file @param {{ signal?: AbortSignal }} [options] @returns {Promise<Blob>} */
  readFile(file, { signal } = {}) {
    return this.#http.json("GET", path("sessions", this.id, "files", file), { file: true, signal });
  }

  /** Delete the session, and cancel its turns. Returns whether there was one. */
  async delete() {
    try {
      await this.#http.json("DELETE", path("sessions", this.id), { wait: WAIT_SECONDS });
      return true;
    } catch (error) {
      if (error instanceof NotFound) return false;
      throw error;
    }
  }
}

/** One turn, which goes on whoever follows it. */
export class Turn {
  #http;

  /** @param {Http} http @param {string} id @param {string} [sessionId] */
  constructor(http, id, sessionId) {
    this.id = id;
    this.sessionId = sessionId;
    this.#http = http;
  }

  /** @param {AbortSignal} [signal] @returns {Promise<TurnInfo>} */
  info(signal) {
    return this.#http.json("GET", path("turns", this.id), { signal });
  }

  /** @returns {Promise<Status>} */
  async status() {
    return (await this.info()).status;
  }

  /**
   * Wait for the end of the turn. Throws `TurnFailed` with the code of the error, `TurnCancelled`, or `ResultTimeout`
   * after `timeout` seconds: the turn goes on, and one may wait again.
   *
   * @param {Wait} [options]
   * @returns {Promise<Response>}
   */
  async result({ timeout = Infinity, signal } = {}) {
    const until = Date.now() + timeout * 1000;
    const late = () => new ResultTimeout(`The turn has not ended within ${timeout} s; it goes on.`, { code: "result_timeout", turnId: this.id });
    const link = linked(signal, timeout + GRACE_SECONDS, late);
    try {
      for (;;) {
        const wait = Math.max(0, Math.min(WAIT_SECONDS, (until - Date.now()) / 1000));
        const found = await this.#http.json("GET", path("turns", this.id, "result"), { query: { wait }, wait, signal: link.signal });
        this.sessionId = found.session_id;
        if (found.response) return withDefaults(found.response);
        if (found.error) throw failure(found);
        if (Date.now() >= until) throw late();
      }
    } finally {
      link.close();
    }
  }

  /**
   * The events of the turn, from the first one that is kept or after a cursor, up to the one that ends it. Nothing is
   * thrown where the turn fails: look at the last event.
   *
   * @param {Follow} [options]
   */
  events({ after, types, signal } = {}) {
    const address = path("turns", this.id, "events");
    return new EventStream((stop) => follow(this.#http, address, { after, types, signal: stop }), after, signal);
  }

  /** Cancel the turn. Its finished steps stay in the history, unless `keep` says otherwise. @param {CancelOptions} [options] @returns {Promise<string>} */
  async cancel(options = {}) {
    return (await this.#http.json("POST", path("turns", this.id, "cancel"), { body: options })).outcome;
  }

  /** Approve a tool call that the turn waits for. @param {string} callId @param {{ by?: string, arguments?: JsonObject }} [options] */
  approve(callId, options = {}) {
    return this.#decide(callId, "approve", options);
  }

  /** Rate the turn with a score from -1 (bad) to 1 (good). @param {number} score @param {{ note?: string }} [options] @returns {Promise<void>} */
  async feedback(score, { note } = {}) {
    await this.#http.json("PUT", path("turns", this.id, "feedback"), { body: { score, note } });
  }

  /** Reject a tool call: it does not run, and the model receives the reason. @param {string} callId @param {{ by?: string, reason?: string }} [options] */
  reject(callId, options = {}) {
    return this.#decide(callId, "reject", options);
  }

  /** Give the result of a client-side tool. @param {string} callId @param {unknown} result @param {{ is_error?: boolean, by?: string }} [options] */
  toolResult(callId, result, options = {}) {
    return this.#decide(callId, "result", { result, ...options });
  }

  /**
   * Decide about a call. The first decision counts: another one throws `AlreadyDecided`. Where the answer to a decision
   * was lost, the repeated request finds its own decision, and that is no error.
   *
   * @param {string} callId
   * @param {"approve" | "reject" | "result"} kind
   * @param {{ by?: string, [more: string]: unknown }} body
   * @returns {Promise<void>}
   */
  async #decide(callId, kind, body) {
    let sent = 0;
    const address = path("turns", this.id, "calls", callId, kind);
    try {
      await this.#http.json("POST", address, { body, sending: () => (sent += 1) });
    } catch (error) {
      if (sent < 2 || !(error instanceof AlreadyDecided)) throw error;
      const { decisions = [] } = await this.info();
      const counts = decisions.find((one) => one.call_id === callId);
      if (counts?.kind !== kind || (body.by !== undefined && (counts.on_behalf_of ?? counts.by) !== body.by)) {
        throw error;
      }
    }
  }
}

/** @param {{ status: Status, error: { code: string, message: string, user_message?: string }, turn_id: string, session_id: string }} found */
function failure({ status, error, turn_id, session_id }) {
  const Kind = status === "cancelled" ? TurnCancelled : TurnFailed;
  return new Kind(error.message, { code: error.code, userMessage: error.user_message, turnId: turn_id, sessionId: session_id });
}

/** A key under which a request can be repeated. */
function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(KEY_BYTES));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
