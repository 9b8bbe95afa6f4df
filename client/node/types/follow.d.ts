import type { Http } from "./http.js";
import type { SessionEvent } from "./types.js";
export type Place = number | string | undefined;
/** @typedef {number | string | undefined} Place */
/**
 * Yield the events of a session or turn behind the cursor until the gateway says that there are no more. Connections
 * that are lost, and gateways that are not there, are tried again for the client's patience; then this throws
 * `Unavailable`.
 *
 * @param {Http} http
 * @param {string} path
 * @param {{ after: number | undefined, types: readonly string[] | undefined, signal: AbortSignal }} asked
 * @returns {AsyncGenerator<SessionEvent, void, undefined>}
 */
export declare function follow(http: Http, path: string, { after, types, signal }: {
    after: number | undefined;
    types: readonly string[] | undefined;
    signal: AbortSignal;
}): AsyncGenerator<SessionEvent, void, undefined>;
/**
 * Yield the events of many sessions, as `follow` does. `onplace` is told where the stream stands, before each event.
 *
 * @param {Http} http
 * @param {{ after?: string, sessions?: readonly string[], types?: readonly string[], tenant?: string, signal: AbortSignal }} asked
 * @param {(place: string) => void} onplace
 * @returns {AsyncGenerator<SessionEvent, void, undefined>}
 */
export declare function followMany(http: Http, { after, sessions, types, tenant, signal }: {
    after?: string;
    sessions?: readonly string[];
    types?: readonly string[];
    tenant?: string;
    signal: AbortSignal;
}, onplace: (place: string) => void): AsyncGenerator<SessionEvent, void, undefined>;
