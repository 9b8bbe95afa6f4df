// A Valkey, a gateway and a worker for the tests, which can kill and restart them: tests/support/node_stand.py.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));
const PYTHON = process.env.ANTIPHON_PYTHON ?? `${ROOT}.venv/bin/python`;

export const STAGE = { provider: "stage", model: "stage-1", tools: ["note", "wait", "sign"] };

let opened;
/** The stand of all suites of this process, which ends with them. */
export const sharedStand = () => (opened ??= openStand());

after(async () => (await opened)?.close());

async function openStand() {
  const env = { ...process.env, PYTHONPATH: `${ROOT}tests` };
  const python = spawn(PYTHON, ["-m", "support.node_stand"], { env, stdio: ["pipe", "pipe", "inherit"] });
  const waiting = new Map();
  createInterface({ input: python.stdout }).on("line", (line) => {
    const { id, gives, failed } = JSON.parse(line);
    const { resolve, reject } = waiting.get(id);
    waiting.delete(id);
    if (failed) reject(new Error(failed));
    else resolve(gives);
  });
  const ended = new Promise((resolve) => python.on("close", resolve));
  let asked = 0;
  const ask = (what, more = {}) =>
    new Promise((resolve, reject) => {
      waiting.set(++asked, { resolve, reject });
      python.stdin.write(`${JSON.stringify({ id: asked, do: what, with: more })}\n`);
    });
  const close = () => (python.stdin.end(), ended);
  return { ask, close, ...(await ask("up")) };
}

/** For a test that takes long: the short form leaves it out. */
export const slow = { skip: process.env.ANTIPHON_NODE_SHORT ? "this is the short form: make node runs all" : false };

let sessions = 0;
/** An id that no other test has. */
export const newSession = () => `node-${process.pid}-${(sessions += 1)}`;

/** All that an iteration gives. */
export async function all(events, until = () => false) {
  const found = [];
  for await (const event of events) {
    found.push(event);
    if (until(event)) break;
  }
  return found;
}

/** The text that the last attempt of each step said. */
export function textIn(events) {
  const last = Math.max(...events.map((event) => event.attempt));
  return events.filter((event) => event.type === "text_delta" && event.attempt === last).map((event) => event.text).join("");
}

/**
 * A reader of a session, empty or with a turn, sees nothing of a later session with its id, however the first one ends.
 * `events(id, options)` is the stream to test, and `submit(id, text, options)` begins sessions.
 */
export async function seesNothingOfALaterSession(stand, gateway, { submit, events }) {
  for (const how of ["deleted", "expired", "gone"]) {
    for (const empty of [true, false]) {
      for (const after of empty ? [0] : [0, undefined, "newest"]) {
        const id = newSession();
        await gateway.call("create_session", { session_id: id, tenant: "b" });
        if (!empty) await (await submit(id, "Hello from the former", { tenant: "b" })).result();
        const cursor = after === "newest" ? (await gateway.session(id).snapshot()).cursor : after;
        const seen = [];
        await stand.ask("record");
        const stream = events(id, cursor === undefined ? {} : { after: cursor });
        const reading = async () => { for await (const event of stream) seen.push(event); };
        const ended = assert.rejects(reading(), { code: "stream_gap" }, `${how} ${empty} ${after}`);
        await stand.ask("reads", { session: id });
        await stand.ask("end_session", { session: id, how });
        await (await submit(id, "Here is the secret", { tenant: "a" })).result();
        await ended;
        assert.doesNotMatch(JSON.stringify(seen), /secret/, `${how} ${empty} ${after}`);
      }
    }
  }
}
