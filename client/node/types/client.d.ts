import { EventStream } from "./event_stream.js";
import { Http } from "./http.js";
import type { ClientOptions, Asked } from "./http.js";
import type { HistoryPage, HistoryQuery, Input, JsonObject, Keep, Response, Snapshot, Status, SubmitOptions, TurnInfo } from "./types.js";
export type Follow = {
    /**
     * the `seq` of the last event seen; 0 for all that are kept
     */
    after?: number;
    /**
     * only events of these types
     */
    types?: readonly string[];
    signal?: AbortSignal;
};
export type FollowMany = {
    /**
     * all events of these, up to 100; without it, the ends of all turns
     */
    sessions?: readonly string[];
    /**
     * the `cursor` of an earlier stream of the same sessions; "0" for all that are kept: ends are from their first reader on
     */
    after?: string;
    /**
     * only events of these types
     */
    types?: readonly string[];
    /**
     * for a key of every tenant: only this one's sessions
     */
    tenant?: string;
    signal?: AbortSignal;
};
export type Wait = {
    /**
     * seconds; without it, as long as it takes
     */
    timeout?: number;
    signal?: AbortSignal;
};
export type CancelOptions = {
    reason?: string;
    keep?: Keep;
};
/**
 * Submits turns to a gateway and follows them.
 *
 *     const client = new Client("https://ai.example.com", { key: "antk_…" });
 *     const turn = await client.submit("user-123", "Hello", { agent: "assistant" });
 *     for await (const event of turn.events()) if (event.type === "text_delta") write(event.text);
 *
 * A call is repeated for `patience` seconds while the gateway cannot be reached or is overloaded; repeating harms
 * nothing. Then it throws `Unavailable`. The client holds no connection of its own: there is nothing to close.
 */
export declare class Client {
    http: Http;
    /** @param {string | URL} url where the gateway is, with the path where it is mounted @param {ClientOptions} [options] */
    constructor(url: string | URL, options?: ClientOptions);
    /**
     * Submit a turn. When this returns, the turn is stored and will run. The input is text, parts or messages. The same
     * `key` in the same session is the same turn.
     *
     * @param {string} session
     * @param {Input} input
     * @param {SubmitOptions} [options]
     * @returns {Promise<Turn>}
     */
    submit(session: string, input: Input, { signal, key, ...options }?: SubmitOptions): Promise<Turn>;
    /** A session, which need not exist yet. @param {string} id */
    session(id: string): Session;
    /** A turn of which only the id is known. @param {string} id */
    turn(id: string): Turn;
    /** Turns that wait for decisions, the one that waits longest first. @param {{ limit?: number, tenant?: string }} [query] @returns {Promise<TurnInfo[]>} */
    waiting(query?: {
        limit?: number;
        tenant?: string;
    }): Promise<TurnInfo[]>;
    /**
     * Follow many sessions in one stream, without end: all events of `sessions`, or the ends of all turns that the key may
     * read (`turn_finished`, `turn_failed`, `turn_cancelled` and `turn_suspended`). Without a cursor only new events come,
     * from when the gateway has answered. The events of each session come in its order. Throws `StreamGap` if events
     * after the cursor are no longer kept.
     *
     * @param {FollowMany} [options]
     * @returns {EventStream<string>}
     */
    events({ sessions, after, types, tenant, signal }?: FollowMany): EventStream<string>;
    /**
     * Any other request to the gateway, with its errors. `once` keeps it from being repeated.
     *
     * @param {string} method
     * @param {string} address such as `/sessions`, percent-encoded
     * @param {Asked} [asked]
     * @returns {Promise<any>}
     */
    request(method: string, address: string, asked?: Asked): Promise<any>;
}
/** One conversation. */
export declare class Session {
    #private;
    id: string;
    /** @param {Client} client @param {string} id */
    constructor(client: Client, id: string);
    /** @param {Input} input @param {SubmitOptions} [options] */
    submit(input: Input, options?: SubmitOptions): Promise<Turn>;
    /** The last messages, the pending turns and the cursor to go on from, at one moment. @param {{ last?: number, signal?: AbortSignal }} [options] @returns {Promise<Snapshot>} */
    snapshot({ last, signal }?: {
        last?: number;
        signal?: AbortSignal;
    }): Promise<Snapshot>;
    /** A page of the history: the last 100 messages, unless `start` and `stop` say otherwise. @param {HistoryQuery} [query] @returns {Promise<HistoryPage>} */
    history(query?: HistoryQuery): Promise<HistoryPage>;
    /**
     * Follow the session without end. Without a cursor this begins where a snapshot does: with the first event of the
     * running turn. Throws `StreamGap` if events after the cursor are no longer kept.
     *
     * @param {Follow} [options]
     */
    events({ after, types, signal }?: Follow): EventStream<number>;
    /**
     * Cancel the turn that runs now, as a stop button does. What has been said stays, unless `keep` says otherwise.
     * Returns `cancelled`, `requested` (a worker ends it now), or null: nothing ran.
     *
     * @param {CancelOptions} [options]
     * @returns {Promise<string | null>}
     */
    cancel(options?: CancelOptions): Promise<string | null>;
    /** Delete the session, and cancel its turns. Returns whether there was one. */
    delete(): Promise<boolean>;
}
/** One turn, which goes on whoever follows it. */
export declare class Turn {
    #private;
    id: string;
    sessionId: string | undefined;
    /** @param {Http} http @param {string} id @param {string} [sessionId] */
    constructor(http: Http, id: string, sessionId?: string);
    /** @param {AbortSignal} [signal] @returns {Promise<TurnInfo>} */
    info(signal?: AbortSignal): Promise<TurnInfo>;
    /** @returns {Promise<Status>} */
    status(): Promise<Status>;
    /**
     * Wait for the end of the turn. Throws `TurnFailed` with the code of the error, `TurnCancelled`, or `ResultTimeout`
     * after `timeout` seconds: the turn goes on, and one may wait again.
     *
     * @param {Wait} [options]
     * @returns {Promise<Response>}
     */
    result({ timeout, signal }?: Wait): Promise<Response>;
    /**
     * The events of the turn, from the first one that is kept or after a cursor, up to the one that ends it. Nothing is
     * thrown where the turn fails: look at the last event.
     *
     * @param {Follow} [options]
     */
    events({ after, types, signal }?: Follow): EventStream<number>;
    /** Cancel the turn. Its finished steps stay in the history, unless `keep` says otherwise. @param {CancelOptions} [options] @returns {Promise<string>} */
    cancel(options?: CancelOptions): Promise<string>;
    /** Approve a tool call that the turn waits for. @param {string} callId @param {{ by?: string, arguments?: JsonObject }} [options] */
    approve(callId: string, options?: {
        by?: string;
        arguments?: JsonObject;
    }): Promise<void>;
    /** Reject a tool call: it does not run, and the model is told. @param {string} callId @param {{ by?: string, reason?: string }} [options] */
    reject(callId: string, options?: {
        by?: string;
        reason?: string;
    }): Promise<void>;
    /** Give the result of a tool of the caller. @param {string} callId @param {unknown} result @param {{ is_error?: boolean, by?: string }} [options] */
    toolResult(callId: string, result: unknown, options?: {
        is_error?: boolean;
        by?: string;
    }): Promise<void>;
}
