export type Where = {
    code?: string;
    /**
     * of HTTP, if a gateway answered
     */
    status?: number;
    /**
     * seconds after which trying again may help
     */
    retryAfter?: number;
    sessionId?: string;
    turnId?: string;
    cause?: unknown;
};
/**
 * @typedef {object} Where
 * @property {string} [code]
 * @property {number} [status] of HTTP, if a gateway answered
 * @property {number} [retryAfter] seconds after which trying again may help
 * @property {string} [sessionId]
 * @property {string} [turnId]
 * @property {unknown} [cause]
 */
/** A session, a turn or a call failed. */
export declare class AntiphonError extends Error {
    code: string;
    status: number | undefined;
    retryAfter: number | undefined;
    sessionId: string | undefined;
    turnId: string | undefined;
    /** @param {string} message @param {Where} [where] */
    constructor(message: string, { code, status, retryAfter, sessionId, turnId, cause }?: Where);
    /** Whether the same call may be made again later, without a change. */
    get retryable(): boolean;
}
/** The call is not valid: change it before you try again. */
export declare class UsageError extends AntiphonError {
}
/** The key or token is missing, wrong or has expired. */
export declare class Unauthorized extends AntiphonError {
}
/** The key does not allow this, or the session belongs to another tenant. */
export declare class Forbidden extends AntiphonError {
}
/** There is no such session, turn or message. */
export declare class NotFound extends AntiphonError {
}
/** The state of the session or turn does not allow this now. */
export declare class Conflict extends AntiphonError {
}
/** Another decision about this call came first, and counts. */
export declare class AlreadyDecided extends Conflict {
}
/** The turn does not wait for this call. */
export declare class NotSuspended extends Conflict {
}
/** The key was used in this session for a different request. */
export declare class KeyReused extends Conflict {
}
/** The session has a turn, or its inbox is full: try again later. */
export declare class SessionBusy extends Conflict {
    get retryable(): boolean;
}
/** Too many requests, streams or turns: try again after `retryAfter` seconds. */
export declare class TooMany extends AntiphonError {
    get retryable(): boolean;
}
/** The gateway, or Redis, cannot be reached or does not answer. The same call with the same key may be repeated. */
export declare class Unavailable extends AntiphonError {
    get retryable(): boolean;
}
/** Events after the cursor are no longer kept, or the session began anew: take a snapshot, and go on after its cursor. */
export declare class StreamGap extends AntiphonError {
    cursor: number;
    oldest: number | null;
    /** @param {string} message @param {Where & {cursor?: number, oldest?: number | null}} [where] */
    constructor(message: string, { cursor, oldest, ...where }?: Where & {
        cursor?: number;
        oldest?: number | null;
    });
}
/** The turn failed; `code` says why. */
export declare class TurnFailed extends AntiphonError {
}
/** The turn was cancelled. */
export declare class TurnCancelled extends AntiphonError {
}
/** The turn has not ended in the time that `result` was given; it goes on. */
export declare class ResultTimeout extends AntiphonError {
    get retryable(): boolean;
}
/** The workers refused a job that was pushed into Redis. */
export declare class Refused extends AntiphonError {
}
export type Kind = new (message: string, where?: any) => AntiphonError;
/** The error for a code alone, as the end of a stream names it. @param {string} code @param {string} message @param {Where} [where] */
export declare const errorOfCode: (code: string, message: string, where?: Where) => AntiphonError;
/**
 * The error for a response that is none of 2xx: from its problem, if it has one.
 *
 * @param {number} status
 * @param {string} body
 * @param {string | null} [retryAfter] the header
 */
export declare function errorOfResponse(status: number, body: string, retryAfter?: string | null): AntiphonError;
