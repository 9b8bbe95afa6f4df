// A reader and submitter for Antiphon in plain Node, written from docs/protocol.md alone.
//
//   node reader.mjs vectors FILE                          run the test vectors; prints what each gave
//   node reader.mjs run URL SESSION TEXT [OPTIONS]        submit a turn by raw commands, follow it, print its result
//   node reader.mjs follow URL SESSION [CURSOR]           print the session's events until a turn has ended
//
// Every line printed is a JSON object.

import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { isDeepStrictEqual } from "node:util";

const PAGE = 500;
const SILENCE_MS = 5000;
const PAUSE_MS = 50;
const RUN_TURN = "antiphon_worker.jobs.run_turn";

// ── names ──────────────────────────────────────────────────────────────────────────────────────────────────────────

export function keys(prefix = "ant") {
  return {
    session: (id) => `${prefix}:session:${id}`,
    inbox: (id) => `${prefix}:inbox:${id}`,
    history: (id) => `${prefix}:history:${id}`,
    events: (id) => `${prefix}:events:${id}`,
    turns: (id) => `${prefix}:turns:${id}`,
    turn: (id) => `${prefix}:turn:${id}`,
    bell: (queue) => `${prefix}:bell:${queue}`,
    live: (database, id) => `${prefix}:live:${database}:${id}`,
    job: (id) => `rq:job:${id}`,
    rq_queue: (queue) => `rq:queue:${queue}`,
    rq_failed: (queue) => `rq:failed:${queue}`,
  };
}

const sha256 = (text) => createHash("sha256").update(text, "utf8").digest();

export const cellHash = (session) => sha256(session).toString("hex").slice(0, 10);

export function cellOf(names, hash) {
  const weight = (name) => sha256(`${name}|${hash}`);
  return names.reduce((best, name) => (Buffer.compare(weight(name), weight(best)) > 0 ? name : best));
}

// ── values ─────────────────────────────────────────────────────────────────────────────────────────────────────────

const IN_ALL = { seq: 0, at: 0, session_id: "", turn_id: "", run: 0, attempt: 0, step: 0 };
const CALL = { call_id: "", name: "" };
const DEFAULTS = {
  turn_queued: { position: 0 },
  turn_started: { worker: "" },
  text_delta: { text: "" },
  reasoning_delta: { text: "" },
  refusal_delta: { text: "" },
  tool_call_delta: { ...CALL, arguments: "" },
  tool_call: { ...CALL, arguments: {} },
  tool_result: { ...CALL, result: "", is_error: false },
  item: { provider: "", item: {} },
  step_finished: { usage: {}, stop_reason: "end", model: "" },
  turn_retrying: { reason: "", code: "", retry_at: 0 },
  turn_finished: { response: null },
  turn_failed: { code: "", message: "" },
  turn_cancelled: { reason: "", kept: 0 },
  message_added: { message: null },
  history_cleared: {},
  variables_changed: { variables: {} },
  session_forked: { fork_id: "" },
  session_closed: { reason: "" },
};
const TERMINAL = new Set(["turn_finished", "turn_failed", "turn_cancelled"]);

export function decodeEvent(text) {
  const found = JSON.parse(text);
  if (found === null || typeof found !== "object" || Array.isArray(found)) throw new Error("An event is an object.");
  const known = DEFAULTS[found.type];
  return known ? { ...IN_ALL, ...known, ...found } : { ...IN_ALL, ...found, type: "unknown", fields: found };
}

export function decodeMessage(text) {
  const found = { parts: [], ...JSON.parse(text) };
  const texts = found.parts.filter((part) => part.type === "text").map((part) => part.text);
  return { role: found.role, text: texts.join(""), parts: found.parts };
}

export function decodeResponse(text) {
  const found = JSON.parse(text);
  const absent = { text: "", output: null, tool_calls: [], messages: [], stop_reason: "end" };
  return { ...absent, raw_stop_reason: null, model: null, usage: {}, ...found };
}

export function snapshotCursor({ seq, first_seq }) {
  return first_seq ? Number(first_seq) - 1 : Number(seq ?? 0);
}

export const jobData = (session, text, options = {}) =>
  JSON.stringify([RUN_TURN, null, [session, text, options], {}]);

// ── following ──────────────────────────────────────────────────────────────────────────────────────────────────────

export class Gap extends Error {}

// `channel.next(ms)` gives "subscribed", "silence" or the text of an event; `readLog(from, count)` gives
// {seq, first, entries: [[seq, text], …]}, read in one transaction.
export async function* follow(cursor, channel, readLog) {
  let last = null; // the text of the event at the cursor
  const at = () => (last === null ? 0 : decodeEvent(last).at);

  async function page() {
    const { seq, first, entries } = await readLog(Math.max(cursor, 1), PAGE + 1);
    cursor = cursor || first;
    const here = entries[0]?.[0] === cursor ? entries.shift()[1] : null;
    if (seq < cursor) throw new Gap(`there is no event ${cursor}, the last one is ${seq}`);
    if (here !== null && last !== null && here !== last) throw new Gap("the session began anew");
    if (seq > cursor && entries[0]?.[0] !== cursor + 1) throw new Gap(`events after ${cursor} are no longer kept`);
    last ??= here;
    return entries.slice(0, PAGE);
  }

  for (;;) {
    const heard = await channel.next(SILENCE_MS);
    if (heard !== "subscribed" && heard !== "silence") {
      const event = decodeEvent(heard);
      if (event.seq === cursor + 1 && event.at >= at()) {
        [cursor, last] = [event.seq, heard];
        yield event;
        continue;
      }
      if (event.seq <= cursor && (event.at < at() || heard === last)) continue;
    }
    for (let entries = await page(); ; entries = await page()) {
      for (const [seq, text] of entries) {
        [cursor, last] = [seq, text];
        yield decodeEvent(text);
      }
      if (entries.length < PAGE) break;
    }
  }
}

// ── Redis ──────────────────────────────────────────────────────────────────────────────────────────────────────────

// One reply at `at`, as [value, end]; undefined where it is not whole yet. Errors come as Error values.
function parse(data, at) {
  const end = data.indexOf("\r\n", at);
  if (end < 0) return undefined;
  const [kind, rest] = [data[at], data.toString("utf8", at + 1, end)];
  let next = end + 2;
  if (kind === 0x2b) return [rest, next];
  if (kind === 0x2d) return [new Error(rest), next];
  if (kind === 0x3a) return [Number(rest), next];
  const size = Number(rest);
  if (size < 0) return [null, next];
  if (kind === 0x24) return data.length < next + size + 2 ? undefined : [data.toString("utf8", next, next + size), next + size + 2];
  const items = [];
  while (items.length < size) {
    const item = parse(data, next);
    if (item === undefined) return undefined;
    items.push(item[0]);
    next = item[1];
  }
  return [items, next];
}

const request = (args) =>
  `*${args.length}\r\n` + args.map((arg) => `$${Buffer.byteLength(String(arg))}\r\n${arg}\r\n`).join("");

class Connection {
  constructor(url, onReply, onLost) {
    const { hostname, port, pathname } = new URL(url);
    this.database = Number(pathname.slice(1) || 0);
    this.data = Buffer.alloc(0);
    this.socket = connect(Number(port || 6379), hostname);
    this.socket.on("data", (data) => {
      this.data = Buffer.concat([this.data, data]);
      for (let reply; (reply = parse(this.data, 0)) !== undefined; onReply(reply[0])) this.data = this.data.subarray(reply[1]);
    });
    this.socket.on("error", () => {});
    this.socket.on("close", onLost);
  }

  send(...commands) {
    this.socket.write(commands.map(request).join(""));
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function checked(replies) {
  for (const reply of replies) if (reply instanceof Error) throw reply;
  return replies;
}

class Redis {
  constructor(url) {
    this.url = url;
    this.database = Number(new URL(url).pathname.slice(1) || 0);
    this.waiting = [];
  }

  // The replies to some commands. A connection that was lost is made anew: what is sent here bears repetition.
  async commands(...commands) {
    for (;;) {
      try {
        return checked(await this.once(commands));
      } catch (error) {
        if (error.message !== "lost") throw error;
        await pause(PAUSE_MS);
      }
    }
  }

  async command(...args) {
    return (await this.commands(args))[0];
  }

  async transaction(...commands) {
    return (await this.commands(["MULTI"], ...commands, ["EXEC"])).at(-1);
  }

  once(commands) {
    if (!this.connection) this.open();
    const replies = commands.map(() => new Promise((resolve, reject) => this.waiting.push({ resolve, reject })));
    this.connection.send(...commands);
    return Promise.all(replies);
  }

  open() {
    this.connection = new Connection(this.url, (reply) => this.waiting.shift().resolve(reply), () => {
      this.connection = null;
      for (const one of this.waiting.splice(0)) one.reject(new Error("lost"));
    });
    if (this.database) {
      this.waiting.push({ resolve() {}, reject() {} });
      this.connection.send(["SELECT", this.database]);
    }
  }

  close() {
    this.connection?.socket.destroy();
  }
}

class Channel {
  constructor(url, name) {
    [this.url, this.name, this.heard, this.closed] = [url, name, [], false];
    this.open();
  }

  open() {
    const onReply = ([kind, , what]) => kind !== "pong" && this.push(kind === "subscribe" ? "subscribed" : what);
    this.connection = new Connection(this.url, onReply, async () => {
      await pause(PAUSE_MS);
      if (!this.closed) this.open();
    });
    this.connection.send(["SUBSCRIBE", this.name]);
  }

  push(what) {
    this.heard.push(what);
    this.wake?.();
  }

  async next(ms) {
    if (!this.heard.length) {
      let timer;
      await new Promise((done) => ([this.wake, timer] = [done, setTimeout(done, ms)]));
      clearTimeout(timer);
    }
    return this.heard.shift() ?? "silence";
  }

  close() {
    this.closed = true;
    this.connection.socket.destroy();
  }
}

// ── sessions ───────────────────────────────────────────────────────────────────────────────────────────────────────

export class Session {
  constructor(url, id, prefix) {
    [this.url, this.id, this.keys, this.redis] = [url, id, keys(prefix), new Redis(url)];
  }

  async snapshot() {
    for (;;) {
      const before = await this.redis.command("LINDEX", this.keys.inbox(this.id), 0);
      const [history, seq, head, first_seq] = await this.redis.transaction(
        ["LRANGE", this.keys.history(this.id), 0, -1],
        ["HGET", this.keys.session(this.id), "seq"],
        ["LINDEX", this.keys.inbox(this.id), 0],
        ["HGET", this.keys.turn(before ?? ""), "first_seq"],
      );
      if (head === before) return { history: history.map(decodeMessage), cursor: snapshotCursor({ seq, first_seq }) };
    }
  }

  async *events(cursor) {
    const channel = new Channel(this.url, this.keys.live(this.redis.database, this.id));
    try {
      yield* follow(cursor, channel, (from, count) => this.readLog(from, count));
    } finally {
      channel.close();
    }
  }

  async readLog(from, count) {
    const [[seq, first], entries] = await this.redis.transaction(
      ["HMGET", this.keys.session(this.id), "seq", "first"],
      ["XRANGE", this.keys.events(this.id), `${from}-0`, "+", "COUNT", count],
    );
    const places = entries.map(([id, fields]) => [Number(id.split("-")[0]), fields[fields.indexOf("e") + 1]]);
    return { seq: Number(seq ?? 0), first: Number(first ?? 0), entries: places };
  }

  // Gives the turn's id.
  async submit(text, options, queue = "antiphon") {
    const id = cellHash(this.id) + randomBytes(11).toString("hex");
    const [job, list, bell] = [this.keys.job(id), this.keys.rq_queue(queue), this.keys.bell(queue)];
    const commands = [
      ["HSET", job, "data", jobData(this.id, text, options), "origin", queue, "status", "queued"],
      ["SADD", "rq:queues", list],
      ["RPUSH", list, id],
      ["RPUSH", bell, "1"],
      ["LTRIM", bell, 0, 0],
      ["PEXPIRE", bell, 60000],
    ];
    do {
      try {
        await this.redis.once([["MULTI"], ...commands, ["EXEC"]]).then(checked);
        return id;
      } catch (error) {
        if (error.message !== "lost") throw error;
      }
    } while (!(await this.redis.command("EXISTS", job))); // the answer was lost, perhaps the job was not
    return id;
  }

  // Waits until a worker has taken the job; throws the reason where it refused it.
  async accepted(turn) {
    for (;;) {
      const [known, [status, reason]] = await this.redis.transaction(
        ["EXISTS", this.keys.turn(turn)],
        ["HMGET", this.keys.job(turn), "status", "exc_info"],
      );
      if (known) return;
      if (status === "failed") throw new Error(reason);
      await pause(PAUSE_MS);
    }
  }

  async result(turn) {
    const names = ["status", "response", "error_code", "error"];
    const [status, response, error_code, error] = await this.redis.command("HMGET", this.keys.turn(turn), ...names);
    return status === "finished" ? { status, response: decodeResponse(response) } : { status, error_code, error };
  }

  close() {
    this.redis.close();
  }
}

// ── commands ───────────────────────────────────────────────────────────────────────────────────────────────────────

const print = (value) => process.stdout.write(JSON.stringify(value) + "\n");

const places = (rows) =>
  rows.flatMap((row) => {
    const [first, last, at] = row.length === 3 ? row : [row[0], row[0], row[1]];
    return Array.from({ length: last - first + 1 }, (_, n) => [first + n, at + n]);
  });

const textOf = ([seq, at]) => `{"seq":${seq},"at":${at},"type":"text_delta","text":"${seq}@${at}"}`;

async function following({ cursor, steps }) {
  const end = new Error("the end of the vector");
  const left = [...steps];
  let log;
  const channel = {
    async next() {
      for (let step; (step = left.shift()) !== undefined; log = step.log) {
        if (!step.log) return typeof step.channel === "string" ? step.channel : textOf(step.channel);
      }
      throw end;
    },
  };
  async function readLog(from, count) {
    const entries = places(log.events);
    const seq = log.seq ?? entries.at(-1)?.[0] ?? 0;
    const page = entries.filter(([seq]) => seq >= from).slice(0, count);
    return { seq, first: log.first ?? 0, entries: page.map((place) => [place[0], textOf(place)]) };
  }
  const delivered = [];
  try {
    for await (const event of follow(cursor, channel, readLog)) delivered.push([event.seq, event.at]);
  } catch (error) {
    if (error === end) return { delivered, gap: false };
    if (error instanceof Gap) return { delivered, gap: true };
    throw error;
  }
}

function readEvent({ text, expect }) {
  let event;
  try {
    event = decodeEvent(text);
  } catch {
    return { error: true };
  }
  return Object.fromEntries(Object.keys(expect ?? event).map((name) => [name, event[name]]));
}

function readResponse({ text }) {
  const { usage, tool_calls, messages, turn_id, session_id, ...found } = decodeResponse(text);
  const { input_tokens = 0, output_tokens = 0 } = usage;
  const calls = tool_calls.map((one) => [one.name, one.arguments ?? {}, one.result ?? null, one.is_error ?? false]);
  return { ...found, input_tokens, output_tokens, tool_calls: calls, messages: messages.map((one) => one.role) };
}

// What each kind of vector gives, and what it should.
const KINDS = {
  names: [
    ({ prefix, session, turn, queue, database }) => {
      const [all, of] = [keys(prefix), { session, inbox: session, history: session, events: session, turns: session }];
      for (const name of ["turn", "job"]) of[name] = turn;
      for (const name of ["bell", "rq_queue", "rq_failed"]) of[name] = queue;
      const found = Object.entries(of).map(([name, id]) => [name, all[name](id)]);
      return { ...Object.fromEntries(found), live: all.live(database, session) };
    },
    ({ expect }) => expect,
  ],
  cells: [
    ({ names, sessions }) => sessions.map(([id]) => [id, cellHash(id), cellOf(names, cellHash(id))]),
    ({ sessions }) => sessions,
  ],
  events: [readEvent, ({ expect, error }) => (error ? { error } : expect)],
  following: [following, ({ delivered, gap }) => ({ delivered: places(delivered), gap })],
  cursors: [snapshotCursor, ({ cursor }) => cursor],
  messages: [
    ({ text }) => ({ ...decodeMessage(text), parts: decodeMessage(text).parts.map((part) => part.type) }),
    ({ expect }) => expect,
  ],
  responses: [readResponse, ({ expect }) => expect],
  jobs: [
    ({ accepted }) => {
      if (!accepted) return null; // what is refused is the worker's business
      const { session, text, ...options } = accepted;
      const given = Object.entries(options).filter(([, value]) => value !== null && !isDeepStrictEqual(value, {}));
      return JSON.parse(jobData(session, text, Object.fromEntries(given)));
    },
    ({ accepted, data }) => {
      if (!accepted) return null;
      const [name, instance, [session, text, options = {}], keywords] = JSON.parse(data);
      return [name, instance, [session, text, { ...options, ...keywords }], {}];
    },
  ],
};

async function vectors(file) {
  const all = JSON.parse(readFileSync(file, "utf8"));
  for (const [kind, [give, expected]] of Object.entries(KINDS)) {
    for (const vector of all[kind]) {
      const [found, wanted] = [await give(vector), expected(vector)];
      print({ kind, name: vector.name, ok: isDeepStrictEqual(found, wanted), found, wanted });
    }
  }
}

async function run(url, id, text, options = "{}") {
  const session = new Session(url, id);
  try {
    const { cursor } = await session.snapshot();
    const turn = await session.submit(text, JSON.parse(options));
    print({ submitted: turn, cursor });
    await session.accepted(turn);
    for await (const event of session.events(cursor)) {
      print({ event });
      if (event.turn_id === turn && TERMINAL.has(event.type)) break;
    }
    print({ result: await session.result(turn), ...(await session.snapshot()) });
  } catch (error) {
    print({ refused: error.message });
  } finally {
    session.close();
  }
}

async function read(url, id, from) {
  const session = new Session(url, id);
  try {
    const { history, cursor } = await session.snapshot();
    print({ history, cursor });
    for await (const event of session.events(from === undefined ? cursor : Number(from))) {
      print({ event });
      if (TERMINAL.has(event.type)) break;
    }
  } catch (error) {
    if (!(error instanceof Gap)) throw error;
    print({ gap: error.message });
  } finally {
    session.close();
  }
}

const [command, ...rest] = process.argv.slice(2);
await { vectors, run, follow: read }[command](...rest);
