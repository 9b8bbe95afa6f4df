// Server-sent events as the standard reads them. A message that is not whole is no message.

import { unavailable, within } from "./waiting.js";

/** @typedef {{ id: string, type: string, data: string }} SseMessage */

/** Makes messages of text that comes in pieces, which may end anywhere. */
export class SseParser {
  #rest = "";
  #afterReturn = false; // the last piece ended with CR: a LF at the beginning of the next one belongs to it
  #begun = false;
  #data = "";
  #hasData = false;
  #type = "";
  #id = "";
  /** What the server asks readers to wait before they come back. @type {number | undefined} */
  retryMs;

  /** @param {string} piece @returns {Generator<SseMessage>} */
  *push(piece) {
    if (piece === "") return;
    if (this.#afterReturn && piece[0] === "\n") piece = piece.slice(1);
    this.#afterReturn = piece === "" ? false : piece.endsWith("\r");
    let text = this.#rest + piece;
    if (!this.#begun && text !== "") {
      this.#begun = true;
      if (text[0] === "\ufeff") text = text.slice(1);
    }
    let start = 0;
    for (const ending of text.matchAll(/\r\n|\n|\r/g)) {
      const message = this.#line(text.slice(start, ending.index));
      start = ending.index + ending[0].length;
      if (message) yield message;
    }
    this.#rest = text.slice(start);
  }

  /** @param {string} line @returns {SseMessage | undefined} */
  #line(line) {
    if (line === "") return this.#end();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "data") {
      this.#data += this.#hasData ? `\n${value}` : value;
      this.#hasData = true;
    } else if (name === "event") {
      this.#type = value;
    } else if (name === "id" && !value.includes("\0")) {
      this.#id = value;
    } else if (name === "retry" && /^\d+$/.test(value)) {
      this.retryMs = Number(value);
    }
    return undefined;
  }

  #end() {
    const message = this.#hasData ? { id: this.#id, type: this.#type || "message", data: this.#data } : undefined;
    [this.#data, this.#hasData, this.#type] = ["", false, ""];
    return message;
  }
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
export async function* messagesOf(body, parser, silence) {
  const [reader, decoder] = [body.getReader(), new TextDecoder("utf-8", { ignoreBOM: true })];
  const late = () => {
    throw unavailable(`Nothing came for ${silence} s: the connection is dead.`);
  };
  try {
    for (;;) {
      const { done, value } = await within(reader.read(), silence * 1000, undefined, late);
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already
  }
}
