/** Calls the gateway with the package `antiphon` for JavaScript. The key is kept for this tab, and is sent in a header only. */

import { follow, followMany } from "../antiphon/follow.js";
import { Http } from "../antiphon/http.js";

const ROOT = new URL("../..", import.meta.url);
const PLACE = "antiphon-key";

export const key = {
  get: () => sessionStorage.getItem(PLACE),
  keep: (text) => sessionStorage.setItem(PLACE, text),
  forget: () => sessionStorage.removeItem(PLACE),
};

const connect = (onrequest = (answer) => answer) => new Http(ROOT, {
  key: () => key.get() ?? undefined,
  patience: Infinity,
  fetch: (url, init) => onrequest(fetch(url, { ...init, credentials: "same-origin", redirect: "error" })),
});
const http = connect();

/** A path whose values are percent-encoded: path`/sessions/${id}`. */
export const path = (texts, ...values) => texts.reduce((before, text, index) => before + encodeURIComponent(values[index - 1]) + text);

/** The JSON of a path. Throws an `AntiphonError`. */
export const get = (where, query) => http.json("GET", where, { query, once: true });

const refused = new Set();

/** What a path answers; null if this key may not see it. It is not asked for again. */
export async function allowed(where, query) {
  if (refused.has(where)) return null;
  try {
    return await get(where, query);
  } catch (problem) {
    if (problem.status !== 403 && problem.status !== 404) throw problem;
    refused.add(where);
    return null;
  }
}

/** POST a body. A `name` makes it harmless to send it twice. */
export const post = (where, body = {}, name = undefined) =>
  http.json("POST", where, { body, once: true, headers: name ? { "idempotency-key": name } : {} });

/**
 * Follow the events of a session from `after` on, or the ends of all turns, until `stop`.
 *
 * `onevent(event)` gets each event once. `onstate("connecting" | "live" | "lost")` is how the connection is.
 * `onend(error)` is called if coming back does not help; without an error where the events have ended.
 * A hidden page holds no connection, as browsers have only six for all pages of a server: it goes on after
 * its last event when it is seen again.
 */
export class Follower {
  #stopped = new AbortController();
  #leave = null; // ends the connection

  constructor(session, { after, onevent, onstate = () => {}, onend = () => {} }) {
    Object.assign(this, { session, after, onevent, onstate, onend });
    const { signal } = this.#stopped;
    document.addEventListener("visibilitychange", () => this.#seen(), { signal });
    addEventListener("online", () => this.#retry(), { signal });
    this.#seen();
  }

  stop() {
    this.#stopped.abort();
    this.#leave?.abort();
  }

  #seen() {
    if (document.hidden) this.#leave?.abort();
    else if (this.#leave?.signal.aborted ?? true) this.#run();
  }

  /** Come back at once, if it waits to do so. */
  #retry() {
    if (this.state !== "lost" || this.#leave.signal.aborted) return;
    this.#leave.abort();
    this.#run();
  }

  async #run() {
    const { signal } = (this.#leave = new AbortController());
    let tries = 0;
    const said = (state) => { if (!signal.aborted) this.onstate(this.state = state); };
    const connection = connect(async (asked) => {
      said((tries += 1) === 1 ? "connecting" : "lost");
      const answer = await asked;
      if (answer.ok) said("live");
      return answer;
    });
    try {
      for await (const event of this.#events(connection, signal)) this.onevent(event);
      if (!signal.aborted) this.#end();
    } catch (error) {
      if (!signal.aborted) this.#end(error);
    }
  }

  #end(error) {
    this.stop();
    this.onend(error);
  }

  async *#events(connection, signal) {
    const { session, after } = this;
    if (session === undefined) return yield* followMany(connection, { after, signal }, (place) => { this.after = place; });
    for await (const event of follow(connection, path`/sessions/${session}/events`, { after, signal })) {
      this.after = event.seq;
      yield event;
    }
    return undefined;
  }
}
