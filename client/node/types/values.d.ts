import type { EventFields, EventType, Message, Response, SessionEvent } from "./types.js";
/** The fields of each type of event with their defaults. @type {{ readonly [T in EventType]: Readonly<EventFields[T]> }} */
export declare const EVENT_DEFAULTS: { readonly [T in EventType]: Readonly<EventFields[T]>; };
/**
 * Read an event as it was published. One of an unknown type has the type `unknown`. Throws an error with the code
 * `corrupt_record` if it is no event.
 *
 * @param {string} text
 * @returns {SessionEvent}
 */
export declare function decodeEvent(text: string): SessionEvent;
/** An entry of the history. @param {string} text @returns {Message} */
export declare const decodeMessage: (text: string) => Message;
/** @param {string} text @returns {Response} */
export declare const decodeResponse: (text: string) => Response;
/** A response with all its fields. @param {Partial<Response>} response @returns {Response} */
export declare const withDefaults: (response: Partial<Response>) => Response;
/** The text of a message: its text parts, joined. @param {Message} message */
export declare const textOf: (message: Message) => string;
/** Whether an event ends a run of its turn. @param {SessionEvent} event */
export declare const isTerminal: (event: SessionEvent) => event is import("./types.js").EventOf<"turn_cancelled"> | import("./types.js").EventOf<"turn_failed"> | import("./types.js").EventOf<"turn_finished">;
/** A text that may be sealed; then what stands in its place. @param {string | undefined} text @param {string} otherwise */
export declare const readable: (text: string | undefined, otherwise: string) => string;
