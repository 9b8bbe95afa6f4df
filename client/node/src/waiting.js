// Waiting that ends: with a signal, with a time limit, and without a timer that is left behind.

import { Unavailable } from "./errors.js";

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 5000;

/** Wait so many milliseconds; an aborted signal throws its reason. @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export const sleep = (ms, signal) => within(new Promise(() => {}), ms, signal, () => undefined);

/**
 * What comes first: the promise, the time limit (then what `late` gives or throws), or the reason of the signal.
 *
 * @template T
 * @param {Promise<T>} promise
 * @param {number} ms
 * @param {AbortSignal | undefined} signal
 * @param {() => any} late
 * @returns {Promise<any>}
 */
export function within(promise, ms, signal, late) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      promise.catch(() => {});
      return reject(signal.reason);
    }
    const stop = () => settle(() => reject(signal?.reason));
    const timer = Number.isFinite(ms) ? setTimeout(() => settle(() => resolve(attempt(late))), ms) : undefined;
    signal?.addEventListener("abort", stop);
    /** @param {() => void} act */
    function settle(act) {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
      act();
    }
    promise.then((value) => settle(() => resolve(value)), (error) => settle(() => reject(error)));
  });
}

/** @param {() => any} call */
async function attempt(call) {
  return call();
}

/**
 * Tries that follow each other until one succeeds, or `patience` seconds have passed since the last success.
 *
 * A success ends the series: `succeeded` says so where the caller goes on to try.
 */
export class Tries {
  /** @param {number} patience seconds @param {number} [second] ms to wait before the third try; it doubles from there */
  constructor(patience, second = 200) {
    this.patience = patience;
    this.second = second;
    this.failed = 0;
    this.since = Date.now();
  }

  /** @param {number} [second] */
  succeeded(second = this.second) {
    this.failed = 0;
    this.since = Date.now();
    this.second = second;
  }

  /**
   * Wait before the next try. Throws the error where it will not mend, and where patience is at its end.
   *
   * @param {any} error what the last try threw
   * @param {AbortSignal} [signal]
   */
  async pause(error, signal) {
    signal?.throwIfAborted();
    if (!(error?.retryable)) throw error;
    const longest = this.failed === 0 ? FIRST_PAUSE_MS : Math.min(this.second * 2 ** (this.failed - 1), LONGEST_PAUSE_MS);
    const ms = Math.max(longest * (0.5 + Math.random() / 2), (error.retryAfter ?? 0) * 1000);
    if (Date.now() + ms - this.since > this.patience * 1000) throw error;
    this.failed += 1;
    await sleep(ms, signal);
  }
}

/**
 * The result of a call that may be repeated, tried again while it throws something retryable.
 *
 * @template T
 * @param {() => Promise<T>} call
 * @param {number} patience seconds
 * @param {AbortSignal} [signal]
 * @returns {Promise<T>}
 */
export async function repeated(call, patience, signal) {
  for (const tries = new Tries(patience); ; ) {
    try {
      return await call();
    } catch (error) {
      await tries.pause(error, signal);
    }
  }
}

/** The error of something that did not answer. @param {string} message @param {unknown} [cause] */
export const unavailable = (message, cause) => new Unavailable(message, { code: "unavailable", cause });

/**
 * A signal that is aborted with another one, after so many seconds with what `late` makes, and when it is closed.
 *
 * @param {AbortSignal | undefined} signal
 * @param {number} [seconds]
 * @param {() => Error} [late]
 */
export function linked(signal, seconds = Infinity, late) {
  const own = new AbortController();
  const abort = () => own.abort(signal?.reason);
  const timer = late && Number.isFinite(seconds) ? setTimeout(() => own.abort(late()), seconds * 1000) : undefined;
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort);
  const close = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
    own.abort();
  };
  return { signal: own.signal, close };
}
