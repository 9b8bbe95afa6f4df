import { SILENCE, SUBSCRIBED } from "./log.js";
import type { Driver } from "./connection.js";
export declare class Feed {
    #private;
    /** @param {Driver} driver */
    constructor(driver: Driver);
    /** Listen to a channel until the signal is aborted. @param {string} channel @param {AbortSignal} signal */
    listen(channel: string, signal: AbortSignal): Listener;
}
/** What one reader has heard and not taken yet. */
declare class Listener {
    #private;
    reconnect: () => void;
    /** @param {() => void} reconnect @param {AbortSignal} signal */
    constructor(reconnect: () => void, signal: AbortSignal);
    /** @param {string | typeof SUBSCRIBED} what */
    push(what: string | typeof SUBSCRIBED): void;
    /** @param {number} ms @returns {Promise<string | typeof SUBSCRIBED | typeof SILENCE>} */
    next(ms: number): Promise<string | typeof SUBSCRIBED | typeof SILENCE>;
}
export {};
