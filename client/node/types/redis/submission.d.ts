import type { TurnOptions } from "../types.js";
import type { keysOf } from "./names.js";
/**
 * The field `data` of a job. Throws `UsageError` for an option that jobs do not have.
 *
 * @param {string} session
 * @param {string} text
 * @param {Omit<TurnOptions, "key">} [options]
 */
export declare function jobData(session: string, text: string, options?: Omit<TurnOptions, "key">): string;
/**
 * The command that submits a turn. It may be repeated: a turn that is known already is left alone.
 *
 * @param {ReturnType<typeof keysOf>} keys
 * @param {string} turn
 * @param {string} queue
 * @param {string} data
 */
export declare function submitCommand(keys: ReturnType<typeof keysOf>, turn: string, queue: string, data: string): string[];
