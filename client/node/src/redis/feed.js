// The channels of all sessions that a client follows in one cell, on one connection, which is open while somebody listens.

import { sleep } from "../waiting.js";
import { SILENCE, SUBSCRIBED } from "./log.js";

/** @import { Driver, Subscriber } from "./connection.js" */

const MOST_UNREAD = 1000; // then the log brings what a slow reader has not taken
const PAUSE_MS = 100;

export class Feed {
  #driver;
  /** @type {Subscriber | undefined} */
  #subscriber;
  /** @type {Map<string, Set<Listener>>} */
  #listeners = new Map();
  /** @type {Set<string>} */
  #confirmed = new Set();

  /** @param {Driver} driver */
  constructor(driver) {
    this.#driver = driver;
  }

  /** Listen to a channel until the signal is aborted. @param {string} channel @param {AbortSignal} signal */
  listen(channel, signal) {
    const listener = new Listener(() => this.#reconnect(), signal);
    const all = (this.#listeners.get(channel) ?? new Set()).add(listener);
    this.#listeners.set(channel, all);
    signal.addEventListener("abort", () => this.#leave(channel, listener), { once: true });
    this.#subscriber ??= this.#open();
    if (this.#confirmed.has(channel)) listener.push(SUBSCRIBED);
    else if (all.size === 1) this.#confirm(this.#subscriber, channel);
    return listener;
  }

  #open() {
    this.#confirmed.clear();
    /** @type {Subscriber} */
    const subscriber = this.#driver.subscriber({
      message: (channel, text) => this.#tell(channel, text),
      ready: () => {
        if (this.#subscriber === subscriber) this.#again(subscriber);
      },
    });
    return subscriber;
  }

  /** The connection was lost and is there again: what was published meanwhile stands in the log. @param {Subscriber} subscriber */
  #again(subscriber) {
    for (const channel of this.#confirmed) {
      if (subscriber.resubscribes) this.#tell(channel, SUBSCRIBED);
      else this.#confirm(subscriber, channel);
    }
  }

  /** Subscribe until it is confirmed, and tell it. @param {Subscriber} subscriber @param {string} channel */
  async #confirm(subscriber, channel) {
    while (this.#subscriber === subscriber && this.#listeners.has(channel)) {
      try {
        await subscriber.subscribe(channel);
        this.#confirmed.add(channel);
        return this.#tell(channel, SUBSCRIBED);
      } catch {
        await sleep(PAUSE_MS);
      }
    }
  }

  /** @param {string} channel @param {string | typeof SUBSCRIBED} what */
  #tell(channel, what) {
    this.#listeners.get(channel)?.forEach((one) => one.push(what));
  }

  #reconnect() {
    this.#subscriber?.close();
    this.#subscriber = this.#open();
    for (const channel of this.#listeners.keys()) this.#confirm(this.#subscriber, channel);
  }

  /** @param {string} channel @param {Listener} listener */
  #leave(channel, listener) {
    const all = this.#listeners.get(channel);
    all?.delete(listener);
    if (all?.size) return;
    this.#listeners.delete(channel);
    this.#confirmed.delete(channel);
    if (this.#listeners.size) return void this.#subscriber?.unsubscribe(channel).catch(() => {});
    this.#subscriber?.close();
    this.#subscriber = undefined;
  }
}

/** What one reader has heard and not taken yet. */
class Listener {
  /** @type {(string | typeof SUBSCRIBED)[]} */
  #heard = [];
  /** @type {(() => void) | undefined} */
  #wake;
  #signal;

  /** @param {() => void} reconnect @param {AbortSignal} signal */
  constructor(reconnect, signal) {
    this.reconnect = reconnect;
    this.#signal = signal;
  }

  /** @param {string | typeof SUBSCRIBED} what */
  push(what) {
    if (this.#heard.length >= MOST_UNREAD) this.#heard = [SUBSCRIBED];
    else this.#heard.push(what);
    this.#wake?.();
  }

  /** @param {number} ms @returns {Promise<string | typeof SUBSCRIBED | typeof SILENCE>} */
  async next(ms) {
    this.#signal.throwIfAborted();
    if (!this.#heard.length) await this.#woken(ms);
    this.#signal.throwIfAborted();
    return this.#heard.shift() ?? SILENCE;
  }
  /** Settles with the next push, the end of the time or the abort. @param {number} ms @returns {Promise<void>} */
  #woken(ms) {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        this.#signal.removeEventListener("abort", done);
        this.#wake = undefined;
        resolve();
      };
      const timer = setTimeout(done, ms);
      this.#wake = done;
      this.#signal.addEventListener("abort", done);
    });
  }
}
