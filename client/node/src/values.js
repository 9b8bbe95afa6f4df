// Events, messages and responses as they are read: what is absent has its default.

import { AntiphonError } from "./errors.js";
import { EVENT_DEFAULTS } from "./generated.js";

/** @import { EventBase, EventType, Message, Response, SessionEvent, Usage } from "./types.js" */

/** @type {EventBase} */
const IN_ALL = { seq: 0, at: 0, session_id: "", turn_id: "", run: 0, attempt: 0, step: 0, tenant: null };

// Shared by all events that lack them: none may change.
for (const fields of Object.values(EVENT_DEFAULTS)) for (const value of Object.values(fields)) Object.freeze(value);

/** @type {Usage} */
const USAGE = {
  input_tokens: 0, output_tokens: 0, cached_input_tokens: 0, cache_write_tokens: 0, reasoning_tokens: 0, cost: null,
  unpriced_tokens: 0,
  estimated_tokens: 0,
};

/** @type {Omit<Response, "usage" | "tool_calls" | "messages">} */
const RESPONSE = {
  text: "", output: null, stop_reason: "end", raw_stop_reason: null, model: null, turn_id: "", session_id: "", limit: null,
};

/**
 * Read an event as it was published. One of an unknown type has the type `unknown`. Throws an error with the code
 * `corrupt_record` if it is no event.
 *
 * @param {string} text
 * @returns {SessionEvent}
 */
export function decodeEvent(text) {
  const found = decodeObject(text, "An event");
  const known = Object.hasOwn(EVENT_DEFAULTS, found.type) && EVENT_DEFAULTS[/** @type {EventType} */ (found.type)];
  if (!known) return { ...IN_ALL, ...baseOf(found), type: "unknown", fields: found };
  const event = /** @type {any} */ ({ ...IN_ALL, ...known, ...found });
  if (event.type === "turn_finished" && event.response) event.response = withDefaults(event.response);
  return event;
}

/** An entry of the history. @param {string} text @returns {Message} */
export const decodeMessage = (text) => /** @type {any} */ ({ parts: [], ...decodeObject(text, "A message") });

/** @param {string} text @returns {Response} */
export const decodeResponse = (text) => withDefaults(decodeObject(text, "A response"));

/** A response with all its fields. @param {Partial<Response>} response @returns {Response} */
export const withDefaults = (response) => ({
  ...RESPONSE,
  messages: [],
  ...response,
  usage: { ...USAGE, ...response.usage },
  tool_calls: (response.tool_calls ?? []).map((call) => ({ ...{ arguments: {}, result: null, is_error: false }, ...call })),
});

/** The text of a message: its text parts, joined. @param {Message} message */
export const textOf = (message) => message.parts.map((part) => (part.type === "text" ? part.text : "")).join("");

/** Whether an event ends a run of its turn. @param {SessionEvent} event */
export const isTerminal = (event) =>
  event.type === "turn_finished" || event.type === "turn_failed" || event.type === "turn_cancelled";

/** @param {Record<string, any>} fields */
function baseOf(fields) {
  return Object.fromEntries(Object.keys(IN_ALL).flatMap((name) => (name in fields ? [[name, fields[name]]] : [])));
}

// What a deployment with encryption has sealed begins so, in JSON and in a text of its own.
const SEALED = /"\\u007f\d+:[a-z_]+:/;
const SEALED_TEXT = /^\x7f\d+:[a-z_]+:/;

/** A text that may be sealed; then what stands in its place. @param {string | undefined} text @param {string} otherwise */
export const readable = (text, otherwise) => (text && !SEALED_TEXT.test(text) ? text : otherwise);

/** @param {string} text @param {string} what @returns {Record<string, any>} */
function decodeObject(text, what) {
  if (SEALED.test(text)) {
    throw new AntiphonError(`${what} is sealed: read it through the gateway, which has the keys.`, { code: "key_missing" });
  }
  let found;
  try {
    found = JSON.parse(text);
  } catch (cause) {
    throw new AntiphonError(`${what} is not readable.`, { code: "corrupt_record", cause });
  }
  if (found === null || typeof found !== "object" || Array.isArray(found)) {
    throw new AntiphonError(`${what} is no object.`, { code: "corrupt_record" });
  }
  return found;
}
