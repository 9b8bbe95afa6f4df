/** Follows server-sent events over fetch, so that the key goes into a header; resumes behind the last one that came. */

import { Problem, send } from "./api.js";

const SILENCE_MS = 40_000; // the gateway says something every 15 seconds
const LONGEST_WAIT_MS = 10_000;

/**
 * Follow the stream of a path from `after` on, until `stop`.
 *
 * `onevent(event)` gets each event once. `onstate("connecting" | "live" | "lost")` says how the connection is.
 * `onend(why)` is called if coming back does not help: with the code of the stream's end, or with a `Problem`.
 */
export class Follower {
  #leave = new AbortController();
  #connection = null;
  #wake = () => {};

  constructor(where, { after, onevent, onstate = () => {}, onend = () => {} }) {
    Object.assign(this, { where, cursor: after, onevent, onstate, onend });
    addEventListener("online", () => this.#wake(), { signal: this.#leave.signal });
    this.#run();
  }

  stop() {
    this.#leave.abort();
    this.#connection?.abort();
    this.#wake();
  }

  /** Come back at once, if it waits to do so. */
  wake() {
    this.#wake();
  }

  async #run() {
    this.onstate("connecting");
    for (let failures = 0; !this.#leave.signal.aborted; failures += 1) {
      try {
        const end = await this.#connect(() => { failures = 0; });
        if (end !== undefined) return this.#end(end);
      } catch (error) {
        if (this.#leave.signal.aborted) return undefined;
        if (error instanceof Problem && !error.passing) return this.#end(error);
      }
      if (this.#leave.signal.aborted) return undefined;
      this.onstate("lost");
      await this.#pause(Math.min(LONGEST_WAIT_MS, 250 * 2 ** failures) * (0.75 + Math.random() / 2));
    }
    return undefined;
  }

  #end(why) {
    if (!this.#leave.signal.aborted) this.onend(why);
    this.stop();
  }

  /** Read until the connection ends. Returns what the message `end` says, if there was one. */
  async #connect(began) {
    const connection = (this.#connection = new AbortController());
    let timer = setTimeout(() => connection.abort(), SILENCE_MS);
    try {
      const headers = { accept: "text/event-stream" };
      if (this.cursor !== undefined) headers["last-event-id"] = String(this.cursor);
      const answer = await send("GET", this.where, { headers, signal: connection.signal });
      this.onstate("live");
      for await (const { type, id, data } of messages(answer.body)) {
        clearTimeout(timer);
        timer = setTimeout(() => connection.abort(), SILENCE_MS);
        began();
        if (this.#leave.signal.aborted) return undefined;
        if (type === "end") return JSON.parse(data).code ?? "";
        if (type === "message") {
          this.onevent(JSON.parse(data), id);
          this.cursor = id;
        }
      }
      return undefined;
    } finally {
      clearTimeout(timer);
      connection.abort();
    }
  }

  #pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => { clearTimeout(timer); resolve(); };
    });
  }
}

/** The messages of a stream of bytes; a comment is one of the type "comment". */
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (left + value).split("\n\n");
      left = blocks.pop();
      for (const block of blocks) yield parsed(block);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const message = { type: "comment", id: "", data: "" };
  for (const line of block.split("\n")) {
    const [, name, value] = /^([a-z]*): ?(.*)$/s.exec(line) ?? [];
    if (name === "data") message.data += value;
    if (name === "id") message.id = value;
    if (name === "event") message.type = value;
  }
  if (message.data && message.type === "comment") message.type = "message";
  return message;
}
