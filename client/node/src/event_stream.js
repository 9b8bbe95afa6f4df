// An iteration over events that can be stopped from outside, at any moment.

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
export class EventStream {
  #stop = new AbortController();
  #items;
  #placeOf;
  #signal;
  #begun = false;
  #closed = false;
  #ended = false;
  #aborted = () => this.#stop.abort(this.#signal?.reason);

  /**
   * @param {(signal: AbortSignal) => AsyncGenerator<SessionEvent, void, undefined>} follow
   * @param {C | undefined} cursor
   * @param {AbortSignal} [signal]
   * @param {(event: SessionEvent) => C} [placeOf] of the event that is given
   */
  constructor(follow, cursor, signal, placeOf = (event) => /** @type {C} */ (event.seq)) {
    /** The place of the last event that was given; before the first one, where the iteration began, if that was said. */
    this.cursor = cursor;
    this.#placeOf = placeOf;
    this.#signal = signal;
    this.#items = follow(this.#stop.signal);
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** @returns {Promise<IteratorResult<SessionEvent, undefined>>} */
  async next() {
    if (this.#ended) return { done: true, value: undefined };
    this.#begin();
    try {
      this.#stop.signal.throwIfAborted();
      const item = await this.#items.next();
      this.#stop.signal.throwIfAborted(); // what was read before an abort is not given after it
      if (item.done) return this.#end();
      this.cursor = this.#placeOf(item.value);
      return item;
    } catch (error) {
      const reason = this.#stop.signal.aborted ? this.#stop.signal.reason : error;
      this.#end();
      this.#stop.abort(reason);
      await this.#items.return().catch(() => {});
      if (this.#closed) return { done: true, value: undefined };
      throw reason;
    }
  }

  /** @returns {Promise<IteratorResult<SessionEvent, undefined>>} */
  async return() {
    this.#closed = true;
    this.#stop.abort(new Error("The stream is closed."));
    await this.#items.return().catch(() => {});
    return this.#end();
  }

  /** Stop. A `next` that is under way ends. */
  async close() {
    await this.return();
  }

  #begin() {
    if (this.#begun) return;
    this.#begun = true;
    if (this.#signal?.aborted) this.#aborted();
    else this.#signal?.addEventListener("abort", this.#aborted);
  }

  /** @returns {{ done: true, value: undefined }} */
  #end() {
    this.#ended = true;
    this.#signal?.removeEventListener("abort", this.#aborted);
    return { done: true, value: undefined };
  }
}
