export type SseMessage = {
    id: string;
    type: string;
    data: string;
};
/** @typedef {{ id: string, type: string, data: string }} SseMessage */
/** Makes messages of text that comes in pieces, which may end anywhere. */
export declare class SseParser {
    #private;
    /** What the server asks readers to wait before they come back. @type {number | undefined} */
    retryMs: number | undefined;
    /** @param {string} piece @returns {Generator<SseMessage>} */
    push(piece: string): Generator<SseMessage>;
}
/**
 * The messages of a body, until it ends. Throws `Unavailable` if nothing at all comes for so many seconds.
 *
 * The body is cancelled when the iteration ends, however it does.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {SseParser} parser
 * @param {number} silence seconds
 * @returns {AsyncGenerator<SseMessage, void, undefined>}
 */
export declare function messagesOf(body: ReadableStream<Uint8Array>, parser: SseParser, silence: number): AsyncGenerator<SseMessage, void, undefined>;
