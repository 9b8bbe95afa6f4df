// Errors. `code` is stable, and the same in every language; the message says what to do.

/**
 * @typedef {object} Where
 * @property {string} [code]
 * @property {string} [userMessage] a sentence for end users, if a gateway answered; the message is for operators
 * @property {number} [status] of HTTP, if a gateway answered
 * @property {number} [retryAfter] seconds after which trying again may help
 * @property {string} [sessionId]
 * @property {string} [turnId]
 * @property {unknown} [cause]
 */

/** A session, a turn or a call failed. */
export class AntiphonError extends Error {
  /** @param {string} message @param {Where} [where] */
  constructor(message, { code = "error", userMessage, status, retryAfter, sessionId, turnId, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code;
    this.userMessage = userMessage;
    this.status = status;
    this.retryAfter = retryAfter;
    this.sessionId = sessionId;
    this.turnId = turnId;
  }

  /** Whether the same call may be made again later, without a change. */
  get retryable() {
    return false;
  }
}

/** The call is not valid: change it before you try again. */
export class UsageError extends AntiphonError {}
/** The key or token is missing, wrong or has expired. */
export class Unauthorized extends AntiphonError {}
/** The key does not allow this, or the session belongs to another tenant. */
export class Forbidden extends AntiphonError {}
/** There is no such session, turn or message. */
export class NotFound extends AntiphonError {}
/** The state of the session or turn does not allow this now. */
export class Conflict extends AntiphonError {}
/** Another decision about this call came first, and counts. */
export class AlreadyDecided extends Conflict {}
/** The turn does not wait for this call. */
export class NotSuspended extends Conflict {}
/** The key was used in this session for a different request. */
export class KeyReused extends Conflict {}

/** The session has a turn, or its inbox is full: try again later. */
export class SessionBusy extends Conflict {
  get retryable() {
    return true;
  }
}

/** Too many requests, streams or turns: try again after `retryAfter` seconds. */
export class TooMany extends AntiphonError {
  get retryable() {
    return true;
  }
}

/** The gateway, or Redis, cannot be reached or does not answer. The same call with the same key may be repeated. */
export class Unavailable extends AntiphonError {
  get retryable() {
    return true;
  }
}

/** Events after the cursor are no longer kept, or the session began anew: take a snapshot, and go on after its cursor. */
export class StreamGap extends AntiphonError {
  /** @param {string} message @param {Where & {cursor?: number, oldest?: number | null}} [where] */
  constructor(message, { cursor = 0, oldest = null, ...where } = {}) {
    super(message, { code: "stream_gap", ...where });
    this.cursor = cursor;
    this.oldest = oldest;
  }
}

/** The turn failed; `code` says why. */
export class TurnFailed extends AntiphonError {}
/** The turn was cancelled. */
export class TurnCancelled extends AntiphonError {}

/** The turn has not ended in the time that `result` was given; it goes on. */
export class ResultTimeout extends AntiphonError {
  get retryable() {
    return true;
  }
}

/** The workers refused a job that was pushed into Redis. */
export class Refused extends AntiphonError {}

/** @typedef {new (message: string, where?: any) => AntiphonError} Kind */

/** @type {Record<string, Kind>} */
const BY_CODE = {
  session_busy: SessionBusy,
  already_decided: AlreadyDecided,
  not_suspended: NotSuspended,
  key_reused: KeyReused,
  stream_gap: StreamGap,
  wrong_tenant: Forbidden,
  session_not_found: NotFound,
  turn_not_found: NotFound,
  turn_deleted: NotFound,
  message_not_found: NotFound,
  store_unavailable: Unavailable,
};

/** @type {Record<number, Kind>} */
const BY_STATUS = { 401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict, 410: StreamGap, 429: TooMany };
const PASSING = new Set([408, 502, 503, 504]);

/** @param {string} code @param {number} [status] @returns {Kind} */
function kindOf(code, status = 0) {
  const known = BY_CODE[code] ?? BY_STATUS[status];
  if (known) return known;
  if (PASSING.has(status)) return Unavailable;
  return status >= 400 && status < 500 ? UsageError : AntiphonError;
}

/** The error for a code alone, as the end of a stream names it. @param {string} code @param {string} message @param {Where} [where] */
export const errorOfCode = (code, message, where) => new (kindOf(code))(message, { ...where, code });

/**
 * The error for a response that is none of 2xx: from its problem, if it has one.
 *
 * @param {number} status
 * @param {string} body
 * @param {string | null} [retryAfter] the header
 */
export function errorOfResponse(status, body, retryAfter = null) {
  const problem = problemIn(body);
  const code = typeof problem.code === "string" ? problem.code : `http_${status}`;
  const seconds = typeof problem.retry_after === "number" ? problem.retry_after : secondsIn(retryAfter);
  const message = problem.detail || problem.title || `The gateway answered with the status ${status}.`;
  return new (kindOf(code, status))(String(message), {
    code, userMessage: problem.user_message, status, retryAfter: seconds, sessionId: problem.session_id, turnId: problem.turn_id,
    cursor: problem.cursor, oldest: problem.oldest,
  });
}

/** @param {string} body @returns {Record<string, any>} */
function problemIn(body) {
  try {
    const found = JSON.parse(body);
    return found !== null && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

/** Seconds, from a header that has seconds or a date. @param {string | null} header */
function secondsIn(header) {
  if (!header) return undefined;
  const found = /^\s*\d+(\.\d+)?\s*$/.test(header) ? Number(header) : (Date.parse(header) - Date.now()) / 1000;
  return Number.isFinite(found) ? Math.max(0, found) : undefined;
}
