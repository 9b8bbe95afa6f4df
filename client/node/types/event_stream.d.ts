import type { SessionEvent } from "./types.js";
/** @import { SessionEvent } from "./types.js" */
/**
 * The events of a session, of a turn or of many sessions: each once, in order. Iterate over it with `for await`.
 *
 * `cursor` is the place of the last event that was given: keep it to go on later, in another process too. It is the
 * event's `seq`, and in a stream of many sessions a text. `break`, `close()` and an aborted signal release everything
 * at once: no socket and no timer is left. After an abort the iteration throws the signal's reason; after `close()` it
 * ends.
 *
 * @template {number | string} [C=number]
 * @implements {AsyncIterableIterator<SessionEvent>}
 */
export declare class EventStream<C extends number | string = number> implements AsyncIterableIterator<SessionEvent> {
    #private;
    /** The place of the last event that was given; before the first one, where the iteration began, if that was said. */
    cursor: C | undefined;
    /**
     * @param {(signal: AbortSignal) => AsyncGenerator<SessionEvent, void, undefined>} follow
     * @param {C | undefined} cursor
     * @param {AbortSignal} [signal]
     * @param {(event: SessionEvent) => C} [placeOf] of the event that is given
     */
    constructor(follow: (signal: AbortSignal) => AsyncGenerator<SessionEvent, void, undefined>, cursor: C | undefined, signal?: AbortSignal, placeOf?: (event: SessionEvent) => C);
    [Symbol.asyncIterator](): this;
    /** @returns {Promise<IteratorResult<SessionEvent, undefined>>} */
    next(): Promise<IteratorResult<SessionEvent, undefined>>;
    /** @returns {Promise<IteratorResult<SessionEvent, undefined>>} */
    return(): Promise<IteratorResult<SessionEvent, undefined>>;
    /** Stop. A `next` that is under way ends. */
    close(): Promise<void>;
}
