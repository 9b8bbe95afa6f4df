import type { SessionEvent } from "../types.js";
/** @import { SessionEvent } from "../types.js" */
export declare const PAGE = 500;
export declare const SILENCE_MS = 5000;
/** What a channel says beside events: that it is subscribed (again), and that nothing has come. */
export declare const SUBSCRIBED: unique symbol;
export declare const SILENCE: unique symbol;
export type Channel = {
    next: (ms: number) => Promise<string | typeof SUBSCRIBED | typeof SILENCE>;
    reconnect: () => void;
};
export type LogPage = {
    seq: number;
    first: number;
    entries: [number, string][];
};
export type ReadLog = (from: number, count: number) => Promise<LogPage>;
/**
 * Yield the events behind the cursor, each once and in order, without end. Throws `StreamGap`.
 *
 * @param {number} cursor
 * @param {Channel} channel
 * @param {ReadLog} readLog
 * @returns {AsyncGenerator<SessionEvent, never, undefined>}
 */
export declare function follow(cursor: number, channel: Channel, readLog: ReadLog): AsyncGenerator<SessionEvent, never, undefined>;
