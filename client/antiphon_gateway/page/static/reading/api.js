/** Calls the gateway: our own interface and nothing else. The key is kept for this tab, and is sent in a header only. */

const ROOT = new URL("../../", import.meta.url);
const PLACE = "antiphon-key";

/** Why the gateway refused a request; `status` is 0 if it did not answer. */
export class Problem extends Error {
  constructor(status, found = {}) {
    super(found.detail || found.title || (status ? `The gateway answered ${status}.` : "The gateway does not answer."));
    this.status = status;
    this.code = found.code ?? "";
    this.retryAfter = found.retry_after ?? 0;
  }

  /** Whether the same request may be answered later. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

export const key = {
  get: () => sessionStorage.getItem(PLACE),
  keep: (text) => sessionStorage.setItem(PLACE, text),
  forget: () => sessionStorage.removeItem(PLACE),
};

/** A path whose values are percent-encoded: path`/sessions/${id}`. */
export function path(texts, ...values) {
  return texts.reduce((before, text, index) => before + encodeURIComponent(values[index - 1]) + text);
}

/** Send a request, and return the response if its status is below 300. Throws `Problem`. */
export async function send(method, where, { body, headers = {}, signal, query = {} } = {}) {
  const url = new URL(where.slice(1), ROOT);
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== null) url.searchParams.set(name, value);
  const asked = { accept: "application/json", ...headers };
  if (key.get()) asked.authorization = `Bearer ${key.get()}`;
  if (body !== undefined) asked["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(url, {
      method, headers: asked, signal, body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", credentials: "same-origin", redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0);
  }
  if (answer.ok) return answer;
  throw new Problem(answer.status, await answer.json().catch(() => ({})));
}

/** Send a request, and return the JSON of the response. Throws `Problem`. */
export async function call(method, where, options) {
  const text = await (await send(method, where, options)).text();
  return text ? JSON.parse(text) : undefined;
}

export const get = (where, query, signal) => call("GET", where, { query, signal });

/** POST a body. A `name` makes it harmless to send it twice. */
export const post = (where, body = {}, name = undefined) =>
  call("POST", where, { body, headers: name ? { "idempotency-key": name } : {} });
