import type { Http } from "./http.js";
import type { SessionEvent } from "./types.js";
/**
 * Yield the events behind the cursor until the gateway says that there are no more. Connections that are lost, and
 * gateways that are not there, are tried again for the client's patience; then this throws `Unavailable`.
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
