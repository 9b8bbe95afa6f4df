/**
 * How late events come, beyond the quickest one of late: the clocks of the server and of this machine may differ.
 * What comes just after the connection began does not count: it was published before.
 */

const MOST = 200;
const REPLAY_MS = 1500;

export class Lag {
  #events = []; // [when it was published, when it came], in ms of the two clocks
  #since = Date.now();

  restart() {
    this.#since = Date.now();
  }

  take(published) {
    if (!published || Date.now() - this.#since < REPLAY_MS) return;
    this.#events.push([published, Date.now()]);
    if (this.#events.length > MOST) this.#events.shift();
  }

  /** The median and the 99th percentile in ms, or null if too little has come. */
  figures() {
    const offset = Math.min(...this.#events.map(([published, came]) => came - published));
    const lags = this.#events.map(([published, came]) => came - published - offset);
    if (lags.length < 5) return null;
    lags.sort((one, other) => one - other);
    return { p50: lags[Math.floor(lags.length / 2)], p99: lags[Math.min(lags.length - 1, Math.floor(lags.length * 0.99))] };
  }

  text() {
    const found = this.figures();
    return found ? `lag ${found.p50} ms, p99 ${found.p99} ms` : "";
  }
}
