export { RedisClient, RedisSession, RedisTurn } from "./client.js";
export { EventStream } from "../event_stream.js";
export * from "../errors.js";
export { decodeEvent, isTerminal, textOf } from "../values.js";
export type RedisOptions = import("./client.js").RedisOptions;
export type JobOptions = import("./client.js").JobOptions;
/** @typedef {import("./client.js").RedisOptions} RedisOptions */
/** @typedef {import("./client.js").JobOptions} JobOptions */
