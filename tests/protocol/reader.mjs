// The package of client/node on a connection of its own making, so that it runs where nothing but Node is installed.
//
//   node reader.mjs vectors FILE                          run the test vectors; prints what each gave
//   node reader.mjs run URL SESSION TEXT [OPTIONS]        submit a turn, follow it, print its result
//   node reader.mjs follow URL SESSION [CURSOR]           print the session's events until a turn has ended
//
// Every line printed is a JSON object.

import { EventEmitter } from "node:events";
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { RedisClient, Refused, StreamGap, TurnFailed, isTerminal, textOf } from "../../client/node/src/redis/index.js";
import { run as runVector } from "../../client/node/test/vectors.js";

const PAUSE_MS = 50;

// ── Redis, with as much of the interface of ioredis as the package uses ─────────────────────────────────────────────

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

class Redis extends EventEmitter {
  status = "connecting";
  #waiting = [];

  constructor(url) {
    super();
    this.url = new URL(url);
    this.options = { host: this.url.hostname, port: Number(this.url.port || 6379), db: Number(this.url.pathname.slice(1) || 0) };
    this.#open();
  }

  duplicate() {
    return new Redis(this.url);
  }

  async call(...args) {
    const [reply] = await this.#send([args]);
    if (reply instanceof Error) throw reply;
    return reply;
  }

  multi(commands) {
    return {
      exec: async () => {
        const replies = (await this.#send([["MULTI"], ...commands, ["EXEC"]])).at(-1);
        if (replies instanceof Error) throw replies;
        return replies.map((reply) => (reply instanceof Error ? [reply, null] : [null, reply]));
      },
    };
  }

  subscribe(channel) {
    return this.call("SUBSCRIBE", channel);
  }

  unsubscribe(channel) {
    return this.call("UNSUBSCRIBE", channel);
  }

  disconnect() {
    this.status = "end";
    this.socket.destroy();
  }

  // A connection that was lost, before the answer or before the commands, fails them; the package sends them again.
  #send(commands) {
    if (this.socket.destroyed) return Promise.reject(new Error("The connection was lost."));
    const replies = commands.map(() => new Promise((resolve, reject) => this.#waiting.push({ resolve, reject })));
    this.socket.write(commands.map(request).join(""));
    return Promise.all(replies);
  }

  #open() {
    let data = Buffer.alloc(0);
    this.socket = connect(this.options.port, this.options.host);
    if (this.options.db) this.call("SELECT", this.options.db).catch(() => {}); // the first of what waits for the connection
    this.socket.on("connect", () => this.emit("ready"));
    this.socket.on("data", (more) => {
      data = Buffer.concat([data, more]);
      for (let reply; (reply = parse(data, 0)) !== undefined; data = data.subarray(reply[1])) this.#take(reply[0]);
    });
    this.socket.on("error", () => {});
    this.socket.on("close", () => {
      for (const one of this.#waiting.splice(0)) one.reject(new Error("The connection was lost."));
      if (this.status !== "end") setTimeout(() => this.status !== "end" && this.#open(), PAUSE_MS);
    });
  }

  #take(reply) {
    if (Array.isArray(reply) && reply[0] === "message") this.emit("message", reply[1], reply[2]);
    else this.#waiting.shift()?.resolve(reply);
  }
}

// ── commands ───────────────────────────────────────────────────────────────────────────────────────────────────────

const print = (value) => process.stdout.write(JSON.stringify(value) + "\n");

async function vectors(file) {
  const { about, ...all } = JSON.parse(readFileSync(file, "utf8"));
  for (const [kind, list] of Object.entries(all)) {
    for (const vector of list) print({ kind, name: vector.name, ...(await runVector(kind, vector)) });
  }
}

const shown = ({ messages, cursor }) => ({
  history: messages.map((message) => ({ ...message, text: textOf(message) })),
  cursor,
});

async function run(redis, id, text, options = "{}") {
  const client = new RedisClient(redis);
  const { cursor } = await client.session(id).snapshot();
  const turn = await client.submit(id, text, JSON.parse(options));
  print({ submitted: turn.id, cursor });
  try {
    for await (const event of turn.events()) print({ event });
    print({ result: await resultOf(turn), ...shown(await client.session(id).snapshot()) });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    print({ refused: error.message });
  }
}

async function resultOf(turn) {
  try {
    return { status: "finished", response: await turn.result() };
  } catch (error) {
    if (!(error instanceof TurnFailed)) throw error;
    return { status: "failed", error_code: error.code, error: error.message };
  }
}

async function read(redis, id, from) {
  const session = new RedisClient(redis).session(id);
  const snapshot = await session.snapshot();
  print(shown(snapshot));
  try {
    for await (const event of session.events({ after: from === undefined ? snapshot.cursor : Number(from) })) {
      print({ event });
      if (isTerminal(event)) break;
    }
  } catch (error) {
    if (!(error instanceof StreamGap)) throw error;
    print({ gap: error.message });
  }
}

const [command, target, ...rest] = process.argv.slice(2);
if (command === "vectors") {
  await vectors(target);
} else {
  const redis = new Redis(target);
  await { run, follow: read }[command](redis, ...rest);
  redis.disconnect();
}
