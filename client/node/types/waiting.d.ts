import { Unavailable } from "./errors.js";
/** Wait so many milliseconds; an aborted signal throws its reason. @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export declare const sleep: (ms: number, signal?: AbortSignal) => Promise<void>;
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
export declare function within<T>(promise: Promise<T>, ms: number, signal: AbortSignal | undefined, late: () => any): Promise<any>;
/**
 * Tries that follow each other until one succeeds, or `patience` seconds have passed since the last success.
 *
 * A success ends the series: `succeeded` says so where the caller goes on to try.
 */
export declare class Tries {
    patience: number;
    second: number;
    failed: number;
    since: number;
    /** @param {number} patience seconds @param {number} [second] ms to wait before the third try; it doubles from there */
    constructor(patience: number, second?: number);
    /** @param {number} [second] */
    succeeded(second?: number): void;
    /**
     * Wait before the next try. Throws the error where it will not mend, and where patience is at its end.
     *
     * @param {any} error what the last try threw
     * @param {AbortSignal} [signal]
     */
    pause(error: any, signal?: AbortSignal): Promise<void>;
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
export declare function repeated<T>(call: () => Promise<T>, patience: number, signal?: AbortSignal): Promise<T>;
/** The error of something that did not answer. @param {string} message @param {unknown} [cause] */
export declare const unavailable: (message: string, cause?: unknown) => Unavailable;
/**
 * A signal that is aborted with another one, after so many seconds with what `late` makes, and when it is closed.
 *
 * @param {AbortSignal | undefined} signal
 * @param {number} [seconds]
 * @param {() => Error} [late]
 */
export declare function linked(signal: AbortSignal | undefined, seconds?: number, late?: () => Error): {
    signal: AbortSignal;
    close: () => void;
};
