// Following a stream of events over HTTP, over one connection after the other.

import { errorOfCode } from "./errors.js";
import { SseParser, messagesOf } from "./sse.js";
import { decodeEvent } from "./values.js";
import { Tries, unavailable } from "./waiting.js";

/** @import { Http } from "./http.js" */
/** @import { SessionEvent } from "./types.js" */

const SILENCE_SECONDS = 40; // the gateway says something every 15 seconds
const HELD_SECONDS = 5; // a connection that was open for so long is a success

/** @typedef {number | string | undefined} Place */

/**
 * Yield the events of a session or turn behind the cursor until the gateway says that there are no more. Connections
 * that are lost, and gateways that are not there, are tried again for the client's patience; then this throws
 * `Unavailable`.
 *
 * @param {Http} http
 * @param {string} path
 * @param {{ after: number | undefined, types: readonly string[] | undefined, signal: AbortSignal }} asked
 * @returns {AsyncGenerator<SessionEvent, void, undefined>}
 */
export function follow(http, path, { after, types, signal }) {
  /** @param {Place} cursor @param {SessionEvent} event */
  const placeOf = (cursor, { seq }) => (cursor !== undefined && seq <= Number(cursor) ? cursor : seq);
  return eventsOf(http, path, { after, query: { types: types?.join(",") }, signal, placeOf });
}

/**
 * Yield the events of many sessions, as `follow` does. `onplace` is told where the stream stands, before each event.
 *
 * @param {Http} http
 * @param {{ after?: string, sessions?: readonly string[], types?: readonly string[], tenant?: string, signal: AbortSignal }} asked
 * @param {(place: string) => void} onplace
 * @returns {AsyncGenerator<SessionEvent, void, undefined>}
 */
export function followMany(http, { after, sessions, types, tenant, signal }, onplace) {
  const query = { sessions: sessions && JSON.stringify(sessions), types: types?.join(","), tenant };
  /** @param {Place} _ @param {SessionEvent} event @param {string} id */
  const placeOf = (_, event, id) => (onplace(id), id);
  return eventsOf(http, "/events", { after, query, signal, placeOf });
}

/**
 * Yield the events whose place is another one than the last, over one connection after the other.
 *
 * @param {Http} http
 * @param {string} path
 * @param {{ after: Place, query: Record<string, unknown>, signal: AbortSignal, placeOf: (cursor: Place, event: SessionEvent, id: string) => Place }} asked
 * @returns {AsyncGenerator<SessionEvent, void, undefined>}
 */
async function* eventsOf(http, path, { after, query, signal, placeOf }) {
  const tries = new Tries(http.patience);
  for (let cursor = after; ; ) {
    let opened = Infinity;
    try {
      const headers = cursor === undefined ? undefined : { "last-event-id": String(cursor) };
      const { body, close } = await http.stream(path, { query, headers, signal });
      try {
        opened = Date.now();
        const parser = new SseParser();
        for await (const { type, data, id } of messagesOf(body, parser, SILENCE_SECONDS)) {
          if (type === "end") return ended(data);
          if (type !== "message") continue;
          tries.succeeded(parser.retryMs);
          const event = decodeEvent(data);
          const place = placeOf(cursor, event, id);
          if (place === cursor) continue;
          cursor = place;
          yield event;
        }
      } finally {
        close();
      }
      throw unavailable("The gateway ends the stream before its events do, and cannot be reached again.");
    } catch (error) {
      if (Date.now() - opened > HELD_SECONDS * 1000) tries.succeeded(); // it may have been silent, or its reader slow
      await tries.pause(lost(error, signal), signal);
    }
  }
}

/** Return at the end of the events; throws the error that ended them. @param {string} data */
function ended(data) {
  const { code } = JSON.parse(data);
  if (code === "stream_gap") {
    throw errorOfCode(code, "Events after the cursor are no longer kept: take a snapshot, and go on after its cursor.");
  }
  if (code) throw errorOfCode(code, `The stream of events ended with the error ${code}.`);
}

/** What a connection that broke threw, as an error of ours. @param {any} error @param {AbortSignal} signal */
function lost(error, signal) {
  const ours = typeof error?.code === "string" && typeof error?.retryable === "boolean";
  return ours || signal.aborted ? error : unavailable("The connection to the gateway was lost.", error);
}
