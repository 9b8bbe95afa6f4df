// Runs the test vectors of docs/protocol.md (tests/protocol/vectors.json) against this package.

import { isDeepStrictEqual } from "node:util";
import { StreamGap } from "../src/errors.js";
import { cellHash, cellOf, keysOf, turnIdOfKey } from "../src/redis/names.js";
import { SILENCE, SUBSCRIBED, follow } from "../src/redis/log.js";
import { recordOf, responseIn, snapshotCursor } from "../src/redis/client.js";
import { missed } from "../src/redis/past.js";
import { jobData, submitCommand } from "../src/redis/submission.js";
import { EVENT_DEFAULTS } from "../src/generated.js";
import { decodeEvent, decodeMessage, decodeResponse, textOf } from "../src/values.js";

/** `[seq, at]` of each event; `[first, last, at]` stands for several that are a millisecond apart. */
const places = (rows) =>
  rows.flatMap((row) => {
    const [first, last, at] = row.length === 3 ? row : [row[0], row[0], row[1]];
    return Array.from({ length: last - first + 1 }, (_, n) => [first + n, at + n]);
  });

const textAt = ([seq, at]) => `{"seq":${seq},"at":${at},"type":"text_delta","text":"${seq}@${at}"}`;
const ENDED = new Set(["finished", "failed", "cancelled"]);
const HEARD = { subscribed: SUBSCRIBED, silence: SILENCE };
const heard = (what) => (Array.isArray(what) ? textAt(what) : (HEARD[what] ?? what.text));

async function following({ cursor, steps }) {
  const end = new Error("the end of the vector");
  const left = [...steps];
  let log;
  let reconnects = 0;
  const channel = {
    reconnect: () => (reconnects += 1),
    async next() {
      for (let step; (step = left.shift()) !== undefined; log = step.log) if (!step.log) return heard(step.channel);
      throw end;
    },
  };
  async function readLog(from, count) {
    const entries = places(log.events);
    const seq = log.seq ?? entries.at(-1)?.[0] ?? 0;
    const page = entries.filter(([place]) => place >= from).slice(0, count);
    return { seq, first: log.first ?? 0, life: seq ? (log.life ?? "1001-t1") : "", entries: page.map((place) => [place[0], textAt(place)]) };
  }
  const delivered = [];
  const given = () => ({ delivered, reconnects });
  try {
    for await (const event of follow(cursor, channel, readLog)) delivered.push([event.seq, event.at]);
  } catch (error) {
    if (error === end) return { ...given(), gap: false };
    if (error instanceof StreamGap) return { ...given(), gap: true };
    throw error;
  }
  throw new Error("it never ends by itself");
}

function readEvent({ text, expect }) {
  let event;
  try {
    event = decodeEvent(text);
  } catch (error) {
    return { error: error.code };
  }
  return Object.fromEntries(Object.keys(expect ?? event).map((name) => [name, event[name]]));
}

const eventExpected = ({ expect, error }) =>
  error ? { error: "corrupt_record" } : { ...expect, ...(expect.response ? { response: decodeResponse(JSON.stringify(expect.response)) } : {}) };

function readResponse({ text, expect }) {
  const { usage, tool_calls, messages, ...found } = decodeResponse(text);
  const calls = tool_calls.map((one) => [one.name, one.arguments, one.result, one.is_error]);
  const flat = { ...found, ...usage, tool_calls: calls, messages: messages.map((one) => one.role) };
  return Object.fromEntries(Object.keys(expect).map((name) => [name, flat[name]]));
}

function jobOf({ accepted }) {
  if (!accepted) return null; // what is refused is the worker's business
  const { session, text, ...options } = accepted;
  const given = Object.entries(options).filter(([, value]) => value !== null && !isDeepStrictEqual(value, {}));
  return JSON.parse(jobData(session, text, Object.fromEntries(given)));
}

function jobExpected({ accepted, data }) {
  if (!accepted) return null;
  const [name, instance, [session, text, options = {}], keywords] = JSON.parse(data);
  return [name, instance, [session, text, { ...options, ...keywords }], {}];
}

function names({ prefix, session, turn, queue, database }) {
  const keys = keysOf(prefix);
  const of = { session, inbox: session, history: session, events: session, turns: session, turn, job: turn, bell: queue };
  const found = Object.entries({ ...of, rq_queue: queue, rq_failed: queue }).map(([name, id]) => [name, keys[name](id)]);
  return { ...Object.fromEntries(found), live: keys.live(database, session) };
}

function outcome({ id, turn, job, expect }) {
  try {
    const record = recordOf(id, turn ?? {}, job ?? {});
    if (!record) return { status: "submitted" };
    return "text" in expect ? { status: record.status, text: responseIn(id, record).text } : { status: record.status, ...(ENDED.has(record.status) ? responseIn(id, record) : {}) };
  } catch (error) {
    return "message" in expect ? { error: error.code, message: error.message } : { error: error.code };
  }
}

function past({ expect, name, ...asked }) {
  const found = missed(asked);
  return found ? { cut_at: found.cutAt, kept: found.kept, pieces: found.pieces.map(({ seq, start, stop }) => [seq, start, stop]) } : null;
}

/** What each kind of vector gives, and what it should. */
export const KINDS = {
  names: [names, ({ expect }) => expect],
  cells: [
    (one) => one.sessions.map(([id]) => [id, cellHash(id), cellOf(one.names, cellHash(id))]),
    ({ sessions }) => sessions,
  ],
  keys: [({ session, key, prefix }) => turnIdOfKey(session, key, prefix), ({ turn }) => turn],
  submissions: [
    ({ prefix, turn, queue, session, text, options }) => submitCommand(keysOf(prefix), turn, queue, jobData(session, text, options)),
    ({ command }) => command,
  ],
  defaults: [({ type }) => EVENT_DEFAULTS[type] ?? null, ({ fields }) => fields],
  events: [readEvent, eventExpected],
  following: [following, ({ delivered, gap, reconnects = 0 }) => ({ delivered: places(delivered), gap, reconnects })],
  past: [past, ({ expect }) => expect],
  cursors: [({ seq, first_seq }) => snapshotCursor(seq, first_seq), ({ cursor }) => cursor],
  outcomes: [outcome, ({ expect }) => expect],
  messages: [
    ({ text }) => {
      const message = decodeMessage(text);
      return { role: message.role, text: textOf(message), parts: message.parts.map((part) => part.type) };
    },
    ({ expect }) => expect,
  ],
  responses: [readResponse, ({ expect }) => expect],
  jobs: [jobOf, jobExpected],
};

/** Runs one vector of a kind. */
export async function run(kind, vector) {
  const [give, expected] = KINDS[kind];
  const [found, wanted] = [await give(vector), expected(vector)];
  return { ok: isDeepStrictEqual(found, wanted), found, wanted };
}
