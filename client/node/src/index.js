// Sessions of turns over a gateway's HTTP interface, in Node and in browsers.

export { Client, Session, Turn } from "./client.js";
export { EventStream } from "./event_stream.js";
export * from "./errors.js";
export { decodeEvent, isTerminal, textOf } from "./values.js";
/** @typedef {import("./http.js").ClientOptions} ClientOptions */
/** @typedef {import("./client.js").Follow} Follow */
/** @typedef {import("./client.js").FollowMany} FollowMany */
/** @typedef {import("./client.js").Wait} Wait */
