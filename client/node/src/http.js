// Requests to a gateway: addresses, keys, repeated tries, and errors from problems.

import { AntiphonError, UsageError, errorOfResponse } from "./errors.js";
import { linked, repeated, unavailable, within } from "./waiting.js";

/**
 * @typedef {object} ClientOptions
 * @property {string | (() => string | Promise<string>)} [key] an API key or a token, or what gives a fresh one
 * @property {number} [patience] for how many seconds a call is repeated while the gateway cannot be reached; 30
 * @property {typeof globalThis.fetch} [fetch] in place of the global one
 * @property {Record<string, string>} [headers] further headers of each request
 *
 * @typedef {object} Asked
 * @property {Record<string, unknown>} [query] what is undefined is left out
 * @property {unknown} [body] is sent as JSON
 * @property {Blob} [content] in place of a body: a file, with its media type
 * @property {boolean} [file] whether the answer is the content of a file
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 * @property {boolean} [once] do not repeat it: a second request would do it twice
 * @property {() => void} [sending] is called before each try
 * @property {number} [wait] how many seconds the gateway itself may wait
 */

const ANSWER_SECONDS = 30;

export class Http {
  /** @param {string | URL} url @param {ClientOptions} options */
  constructor(url, { key, patience = 30, fetch, headers = {} } = {}) {
    this.url = String(url).replace(/\/+$/, "");
    this.patience = patience;
    this.key = key;
    this.headers = headers;
    this.fetch = fetch ?? ((input, init) => globalThis.fetch(input, init));
  }

  /**
   * The JSON of the answer; undefined where there is none.
   *
   * @param {string} method
   * @param {string} path
   * @param {Asked} [asked]
   * @returns {Promise<any>}
   */
  json(method, path, asked = {}) {
    const call = () => {
      asked.sending?.();
      return this.#answer(method, path, asked);
    };
    return asked.once ? call() : repeated(call, this.patience, asked.signal);
  }

  /**
   * A body that streams events, until `close` or the signal ends it.
   *
   * @param {string} path
   * @param {Asked} asked
   * @returns {Promise<{ body: ReadableStream<Uint8Array>, close: () => void }>}
   */
  async stream(path, asked) {
    const link = linked(asked.signal);
    try {
      const headers = { accept: "text/event-stream", ...asked.headers };
      const response = await inTime(this.#send("GET", path, { ...asked, headers }, link.signal), `GET ${path}`, 0);
      if (!response.ok) throw await inTime(refusal(response), `GET ${path}`, 0);
      const type = response.headers.get("content-type") ?? "nothing";
      if (!response.body || !type.startsWith("text/event-stream")) {
        throw unavailable(`The answer is ${type}, and no stream of events: something else answers at this address.`);
      }
      return { body: response.body, close: link.close };
    } catch (error) {
      link.close();
      throw error;
    }
  }

  /** @param {string} method @param {string} path @param {Asked} asked */
  async #answer(method, path, asked) {
    const link = linked(asked.signal);
    try {
      return await inTime(this.#read(method, path, asked, link.signal), `${method} ${path}`, asked.wait);
    } finally {
      link.close();
    }
  }

  /** @param {string} method @param {string} path @param {Asked} asked @param {AbortSignal} signal */
  async #read(method, path, asked, signal) {
    const response = await this.#send(method, path, asked, signal);
    if (!response.ok) throw await refusal(response);
    const read = asked.file ? response.blob() : response.text();
    const text = await read.catch((cause) => {
      throw signal.aborted ? signal.reason : unavailable(`The answer to ${method} ${path} was cut off.`, cause);
    });
    if (typeof text !== "string") return text;
    try {
      return text === "" ? undefined : JSON.parse(text);
    } catch (cause) {
      throw unavailable(`The answer to ${method} ${path} is no JSON: something else answers at this address.`, cause);
    }
  }

  /** @param {string} method @param {string} path @param {Asked} asked @param {AbortSignal} signal @returns {Promise<Response>} */
  async #send(method, path, { query = {}, body, content, headers }, signal) {
    const key = typeof this.key === "function" ? await this.key() : this.key;
    const given = Object.entries(query).filter(([, value]) => value !== undefined);
    const search = given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
    try {
      return await this.fetch(this.url + path + search, {
        method,
        signal,
        cache: "no-store",
        headers: {
          ...this.headers,
          ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
          ...(body === undefined ? {} : { "content-type": "application/json" }),
          ...(content === undefined ? {} : { "content-type": content.type || "application/octet-stream" }),
          ...headers,
        },
        ...(body === undefined && content === undefined ? {} : { body: content ?? JSON.stringify(body) }),
      });
    } catch (cause) {
      if (signal.aborted) throw signal.reason;
      throw unavailable(`The gateway at ${this.url} cannot be reached.`, cause);
    }
  }
}

/** @template T @param {Promise<T>} answer @param {string} what @param {number} [wait] @returns {Promise<T>} */
function inTime(answer, what, wait = 0) {
  return within(answer, (ANSWER_SECONDS + wait) * 1000, undefined, () => {
    throw unavailable(`${what} was not answered in time.`);
  });
}

/** A path of percent-encoded segments. @param {...string} segments */
export function path(...segments) {
  return segments.map((segment) => `/${encoded(segment)}`).join("");
}

/** @param {string} segment */
function encoded(segment) {
  if (segment === "" || segment === "." || segment === "..") {
    throw new UsageError(`${JSON.stringify(segment)} cannot be part of an address: use another id.`, { code: "invalid_id" });
  }
  try {
    return encodeURIComponent(segment);
  } catch (cause) {
    throw new UsageError("An id must be valid Unicode text.", { code: "invalid_id", cause });
  }
}

/** @param {Response} response @returns {Promise<AntiphonError>} */
async function refusal(response) {
  const body = await response.text().catch(() => "");
  return errorOfResponse(response.status, body, response.headers.get("retry-after"));
}
