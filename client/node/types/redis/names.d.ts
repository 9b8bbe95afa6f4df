/** Keys and channels of a deployment. @param {string} [prefix] */
export declare const keysOf: (prefix?: string) => {
    session: (/** @type {string} */ id: string) => string;
    inbox: (/** @type {string} */ id: string) => string;
    history: (/** @type {string} */ id: string) => string;
    events: (/** @type {string} */ id: string) => string;
    turns: (/** @type {string} */ id: string) => string;
    turn: (/** @type {string} */ id: string) => string;
    bell: (/** @type {string} */ queue: string) => string;
    live: (/** @type {number} */ database: number, /** @type {string} */ id: string) => string;
    job: (/** @type {string} */ id: string) => string;
    queues: string;
    rq_queue: (/** @type {string} */ queue: string) => string;
    rq_failed: (/** @type {string} */ queue: string) => string;
};
/** The ten digits that select the cell of a session. @param {string} session */
export declare const cellHash: (session: string) => string;
/** The name of the cell on which a session with this hash lives. @param {readonly string[]} names @param {string} hash */
export declare function cellOf(names: readonly string[], hash: string): string;
/** A new turn's id. @param {string} session */
export declare const newTurnId: (session: string) => string;
/** The id of the turn with this key, which is always the same. @param {string} session @param {string} key @param {string} [prefix] */
export declare function turnIdOfKey(session: string, key: string, prefix?: string): string;
