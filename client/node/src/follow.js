// Following a stream of events over HTTP, over one connection after the other.

import { errorOfCode } from "./errors.js";
import { SseParser, messagesOf } from "./sse.js";
import { decodeEvent } from "./values.js";
import { Tries, unavailable } from "./waiting.js";

/** @import { Http } from "./http.js" */
/** @import { SessionEvent } from "./types.js" */

const SILENCE_SECONDS = 40; // the gateway says something every 15 seconds
const HELD_SECONDS = 5; // a connection that was open for so long is a success

/**
 * Yield the events behind the cursor until the gateway says that there are no more. Connections that are lost, and
 * gateways that are not there, are tried again for the client's patience; then this throws `Unavailable`.
 *
 * @param {Http} http
 * @param {string} path
 * @param {{ after: number | undefined, types: readonly string[] | undefined, signal: AbortSignal }} asked
 * @returns {AsyncGenerator<SessionEvent, void, undefined>}
 */
export async function* follow(http, path, { after, types, signal }) {
  const tries = new Tries(http.patience);
  for (let cursor = after; ; ) {
    let opened = Infinity;
    try {
      const headers = cursor === undefined ? undefined : { "last-event-id": String(cursor) };
      const { body, close } = await http.stream(path, { query: { types: types?.join(",") }, headers, signal });
      try {
        opened = Date.now();
        const parser = new SseParser();
        for await (const { type, data } of messagesOf(body, parser, SILENCE_SECONDS)) {
          if (type === "end") return ended(data);
          if (type !== "message") continue;
          tries.succeeded(parser.retryMs);
          const event = decodeEvent(data);
          if (cursor !== undefined && event.seq <= cursor) continue;
          cursor = event.seq;
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
