import type { SessionEvent } from "./types.js";
/** @import { SessionEvent } from "./types.js" */
/**
 * The events of a session or of a turn: each once, in order. Iterate over it with `for await`.
 *
 * `cursor` is the `seq` of the last event that was given: keep it to go on later, in another process too. `break`,
 * `close()` and an aborted signal release everything at once: no socket and no timer is left. After an abort the
 * iteration throws the signal's reason; after `close()` it ends.
 *
 * @implements {AsyncIterableIterator<SessionEvent>}
 */
export declare class EventStream implements AsyncIterableIterator<SessionEvent> {
    #private;
    /** The `seq` of the last event that was given; before the first one, where the iteration began, if that was said. */
    cursor: number | undefined;
    /**
     * @param {(signal: AbortSignal) => AsyncGenerator<SessionEvent, void, undefined>} follow
     * @param {number | undefined} cursor
     * @param {AbortSignal} [signal]
     */
    constructor(follow: (signal: AbortSignal) => AsyncGenerator<SessionEvent, void, undefined>, cursor: number | undefined, signal?: AbortSignal);
    [Symbol.asyncIterator](): this;
    /** @returns {Promise<IteratorResult<SessionEvent, undefined>>} */
    next(): Promise<IteratorResult<SessionEvent, undefined>>;
    /** @returns {Promise<IteratorResult<SessionEvent, undefined>>} */
    return(): Promise<IteratorResult<SessionEvent, undefined>>;
    /** Stop. A `next` that is under way ends. */
    close(): Promise<void>;
}
