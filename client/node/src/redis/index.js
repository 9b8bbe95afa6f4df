// Sessions of turns straight from Redis, in Node.

export { RedisClient, RedisSession, RedisTurn } from "./client.js";
export { EventStream } from "../event_stream.js";
export * from "../errors.js";
export { decodeEvent, isTerminal, textOf } from "../values.js";
/** @typedef {import("./client.js").RedisOptions} RedisOptions */
/** @typedef {import("./client.js").JobOptions} JobOptions */
