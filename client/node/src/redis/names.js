// Names in Redis, and the places of sessions.

import { createHash, randomBytes } from "node:crypto";

/** Keys and channels of a deployment. @param {string} [prefix] */
export const keysOf = (prefix = "ant") => ({
  session: (/** @type {string} */ id) => `${prefix}:session:${id}`,
  inbox: (/** @type {string} */ id) => `${prefix}:inbox:${id}`,
  history: (/** @type {string} */ id) => `${prefix}:history:${id}`,
  events: (/** @type {string} */ id) => `${prefix}:events:${id}`,
  turns: (/** @type {string} */ id) => `${prefix}:turns:${id}`,
  turn: (/** @type {string} */ id) => `${prefix}:turn:${id}`,
  erasing: `${prefix}:erasing`,
  bell: (/** @type {string} */ queue) => `${prefix}:bell:${queue}`,
  live: (/** @type {number} */ database, /** @type {string} */ id) => `${prefix}:live:${database}:${id}`,
  job: (/** @type {string} */ id) => `rq:job:${id}`,
  queues: "rq:queues",
  rq_queue: (/** @type {string} */ queue) => `rq:queue:${queue}`,
  rq_failed: (/** @type {string} */ queue) => `rq:failed:${queue}`,
});

/** @param {string} text */
const sha256 = (text) => createHash("sha256").update(text, "utf8").digest();

/** The ten digits that select the cell of a session. @param {string} session */
export const cellHash = (session) => sha256(session).toString("hex").slice(0, 10);

/** The name of the cell on which a session with this hash lives. @param {readonly string[]} names @param {string} hash */
export function cellOf(names, hash) {
  const weight = (/** @type {string} */ name) => sha256(`${name}|${hash}`);
  return names.reduce((best, name) => (Buffer.compare(weight(name), weight(best)) > 0 ? name : best));
}

/** A new turn's id. @param {string} session */
export const newTurnId = (session) => cellHash(session) + randomBytes(11).toString("hex");

/** The id of the turn with this key, which is always the same. @param {string} session @param {string} key @param {string} [prefix] */
export function turnIdOfKey(session, key, prefix = "ant") {
  const deployment = prefix === "ant" ? "" : `|${lengthOf(prefix)}:${prefix}|`;
  const digest = sha256(`${deployment}${lengthOf(session)}:${session}:${key}`).toString("hex");
  return `${cellHash(session)}k${digest.slice(0, 31)}`;
}

/** In code points: `length` counts a sign beyond U+FFFF as two. @param {string} text */
const lengthOf = (text) => [...text].length;
