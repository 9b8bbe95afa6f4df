import { EventStream } from "../event_stream.js";
import { Connection } from "./connection.js";
import { Feed } from "./feed.js";
import { keysOf } from "./names.js";
import type { Follow, Wait } from "../client.js";
import type { Message, Response, Status, TurnOptions } from "../types.js";
export type RedisOptions = {
    /**
     * of the keys; `ant`
     */
    prefix?: string;
    /**
     * for turns that name none; `antiphon`
     */
    queue?: string;
    /**
     * for how many seconds a call is repeated while Redis cannot be reached; 10
     */
    patience?: number;
};
export type JobOptions = Omit<TurnOptions, "if_busy"> & {
    queue?: string;
    signal?: AbortSignal;
};
export type Cell = {
    connection: Connection;
    feed: Feed;
    keys: ReturnType<typeof keysOf>;
};
export type TurnRecord = {
    status: Status;
    session: string;
    fields: Record<string, string>;
};
/**
 * Submits turns and follows sessions in Redis, without a gateway.
 *
 *     const redis = await createClient({ url: "redis://localhost:6379/0" }).connect();
 *     const client = new RedisClient(redis);
 *     const turn = await client.submit("user-123", "Hello", { agent: "assistant" });
 *     console.log((await turn.result()).text);
 *
 * It takes a connected client of `redis` (node-redis) or `ioredis`, or one for each cell, and sends its commands there;
 * that client stays yours to close. While something is followed, there is a second connection, for its channels.
 */
export declare class RedisClient {
    #private;
    /** @param {any} redis a client, or a list of clients @param {RedisOptions} [options] */
    constructor(redis: any, { prefix, queue, patience }?: RedisOptions);
    /**
     * Submit a turn. When this returns, its job is stored. The same `key` in the same session is the same turn; what else
     * was given the first time counts.
     *
     * @param {string} session
     * @param {string} text
     * @param {JobOptions} [options]
     */
    submit(session: string, text: string, { key, queue, signal, ...options }?: JobOptions): Promise<RedisTurn>;
    /** A session, which need not exist yet. @param {string} id */
    session(id: string): RedisSession;
    /** A turn of which only the id is known. @param {string} id */
    turn(id: string): RedisTurn;
}
/** One conversation. */
export declare class RedisSession {
    #private;
    id: string;
    /** @param {Cell} cell @param {string} id */
    constructor(cell: Cell, id: string);
    /**
     * The whole history, the turn that is the current one, and the cursor from which all of it can be followed.
     *
     * @param {{ signal?: AbortSignal }} [options]
     * @returns {Promise<{ session_id: string, messages: Message[], cursor: number, turn_id: string | null }>}
     */
    snapshot({ signal }?: {
        signal?: AbortSignal;
    }): Promise<{
        session_id: string;
        messages: Message[];
        cursor: number;
        turn_id: string | null;
    }>;
    /**
     * Follow the session without end. Without a cursor this begins where a snapshot does: with the first event of the
     * running turn. Throws `StreamGap` if events after the cursor are no longer kept.
     *
     * @param {Follow} [options]
     */
    events({ after, types, signal }?: Follow): EventStream<number>;
}
/** One turn, which goes on whoever follows it. */
export declare class RedisTurn {
    #private;
    id: string;
    /** @param {Cell} cell @param {string} id */
    constructor(cell: Cell, id: string);
    /** `submitted` until a worker has taken the job. Throws `Refused` if it refused it, and `NotFound`. @returns {Promise<Status | "submitted">} */
    status(): Promise<Status | "submitted">;
    /**
     * Wait for the end of the turn. Throws `TurnFailed` with the code of the error, `TurnCancelled`, `Refused` if the
     * workers refuse the job, or `ResultTimeout` after `timeout` seconds: the turn goes on, and one may wait again.
     *
     * @param {Wait} [options]
     * @returns {Promise<Response>}
     */
    result({ timeout, signal }?: Wait): Promise<Response>;
    /**
     * The events of the turn, from the first one that is kept or after a cursor, up to the one that ends it. If an ended
     * turn's events are no longer kept, only the last one comes. Throws `StreamGap` if a running turn's are not, and
     * `Refused` if the workers refuse the job.
     *
     * @param {Follow} [options]
     */
    events({ after, types, signal }?: Follow): EventStream<number>;
}
/**
 * What the record of a turn and its job say; undefined while the job waits. Throws `Refused` and `NotFound`.
 *
 * @param {string} id
 * @param {Record<string, string>} fields
 * @param {Record<string, string>} job
 * @returns {TurnRecord | undefined}
 */
export declare function recordOf(id: string, fields: Record<string, string>, job: Record<string, string>): TurnRecord | undefined;
/** The response of a turn that has ended. Throws `TurnFailed` and `TurnCancelled`. @param {string} id @param {TurnRecord} record */
export declare function responseIn(id: string, { status, session, fields }: TurnRecord): Response;
/** The cursor of a snapshot. @param {string | null} seq @param {string | null} [first] the `first_seq` of the current turn */
export declare const snapshotCursor: (seq: string | null, first?: string | null) => number;
