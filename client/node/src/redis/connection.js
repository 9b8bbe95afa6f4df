// A client of node-redis or of ioredis, as the rest needs it: commands, transactions and one subscription.

import { AntiphonError, UsageError } from "../errors.js";
import { repeated, unavailable, within } from "../waiting.js";

/**
 * What a subscriber tells: messages, and that all its channels were subscribed anew.
 *
 * @typedef {{ message: (channel: string, text: string) => void, ready: () => void }} Told
 *
 * @typedef {object} Subscriber
 * @property {(channel: string) => Promise<unknown>} subscribe settles with the confirmation
 * @property {(channel: string) => Promise<unknown>} unsubscribe
 * @property {boolean} resubscribes whether its library subscribes anew after a lost connection
 * @property {() => void} close
 *
 * @typedef {object} Driver
 * @property {string} name of the cell
 * @property {number} database
 * @property {() => boolean} closed
 * @property {(args: string[]) => Promise<any>} command
 * @property {(commands: string[][]) => Promise<any[]>} transaction
 * @property {(told: Told) => Subscriber} subscriber
 */

const ANSWER_MS = 5000;
// What a server says while it cannot answer, in contrast to what is wrong with the command.
const PASSING = new Set(["LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY", "OOM", "NOREPLICAS"]);

// What a node of a cluster says of keys that are not there.
const OF_A_CLUSTER = new Set(["MOVED", "ASK", "CROSSSLOT"]);
const NO_CLUSTER =
  "A Redis Cluster cannot be used from Node without a gateway: use Client of the package antiphon with the URL of a gateway (antiphon serve).";

export class Connection {
  /** @param {any} client of node-redis or ioredis @param {number} patience seconds */
  constructor(client, patience) {
    this.driver = driverOf(client);
    this.patience = patience;
  }

  /** The reply to a command that may be repeated. @param {string[]} args @param {AbortSignal} [signal] @returns {Promise<any>} */
  command(args, signal) {
    return this.#patiently(() => this.driver.command(args), signal);
  }

  /** The replies to commands that only read, all of one moment. @param {string[][]} commands @param {AbortSignal} [signal] @returns {Promise<any[]>} */
  transaction(commands, signal) {
    return this.#patiently(() => this.driver.transaction(commands), signal);
  }

  /** @template T @param {() => Promise<T>} call @param {AbortSignal} [signal] @returns {Promise<T>} */
  #patiently(call, signal) {
    const late = () => {
      throw unavailable(`Redis (${this.driver.name}) does not answer.`);
    };
    const once = async () => {
      try {
        return await within(call(), Math.min(ANSWER_MS, this.patience * 1000), signal, late);
      } catch (error) {
        signal?.throwIfAborted();
        throw this.#told(error);
      }
    };
    return repeated(once, this.patience, signal);
  }

  /** What a library threw, as an error of ours. @param {any} error */
  #told(error) {
    if (error instanceof AntiphonError) return error;
    if (this.driver.closed()) {
      return new UsageError("The Redis client is not connected, or was closed: connect it first.", { code: "client_closed", cause: error });
    }
    const word = error?.code === undefined ? /^[A-Z]{3,}\b/.exec(String(error?.message))?.[0] : undefined;
    if (word && OF_A_CLUSTER.has(word)) return new AntiphonError(NO_CLUSTER, { code: "store_unsupported", cause: error });
    if (word && !PASSING.has(word)) {
      return new AntiphonError(`Redis refuses a command: ${error.message}`, { code: "store", cause: error });
    }
    return unavailable(`Redis (${this.driver.name}) cannot be reached: ${error?.message || error?.code}.`, error);
  }
}

/** @param {any} client @returns {Driver} */
function driverOf(client) {
  if (client?.isCluster || client?.masters) throw new UsageError(NO_CLUSTER, { code: "usage" });
  if (client?.options?.keyPrefix) {
    throw new UsageError("The Redis client must have no keyPrefix: other services would not find its keys.", { code: "usage" });
  }
  if (typeof client?.withTypeMapping === "function" && typeof client.sendCommand === "function") return nodeRedis(client);
  if (typeof client?.call === "function" && typeof client.multi === "function") return ioredis(client);
  throw new UsageError("Give a client of the package redis (createClient) or ioredis (new Redis).", { code: "usage" });
}

/** @param {any} client @returns {Driver} */
function nodeRedis(client) {
  const { socket = {}, database = 0 } = client.options ?? {};
  const plain = client.withTypeMapping({}); // text as strings, whatever else the client is used for
  return {
    name: cellName(socket, database),
    database,
    closed: () => !client.isOpen,
    command: (args) => plain.sendCommand(args),
    transaction: (commands) => commands.reduce((multi, args) => multi.addCommand(args), plain.multi()).exec(),
    subscriber(told) {
      const own = client.duplicate();
      /** @type {Map<string, (text: string) => void>} */
      const listeners = new Map();
      let before = false;
      own.on("error", () => {}); // it connects again by itself
      own.on("ready", () => (before ? told.ready() : (before = true)));
      const connected = own.connect();
      connected.catch(() => {});
      return {
        resubscribes: true,
        subscribe: async (channel) => {
          await connected;
          const listen = listeners.get(channel) ?? ((text) => told.message(channel, text));
          listeners.set(channel, listen); // the same one: a message comes once for each listener
          await own.subscribe(channel, listen);
        },
        unsubscribe: (channel) => own.unsubscribe(channel),
        close: () => {
          if (own.isReady) return own.destroy();
          // destroyed before it is there, a connection that is being made would stay
          for (const moment of ["connect", "ready", "error"]) own.once(moment, () => own.isOpen && own.destroy());
        },
      };
    },
  };
}

/** @param {any} client @returns {Driver} */
function ioredis(client) {
  const { db = 0, sentinels, name, ...place } = client.options ?? {};
  return {
    name: sentinels?.length ? `${name}/${db}` : cellName(place, db),
    database: db,
    closed: () => client.status === "end",
    command: (args) => client.call(...args),
    async transaction(commands) {
      const replies = await client.multi(commands.map(([command, ...args]) => [String(command).toLowerCase(), ...args])).exec();
      return replies.map((/** @type {[Error | null, any]} */ [error, reply]) => {
        if (error) throw error;
        return reply;
      });
    },
    subscriber(told) {
      const own = client.duplicate({ autoResubscribe: false, lazyConnect: false, maxRetriesPerRequest: null });
      let before = false;
      own.on("error", () => {});
      own.on("ready", () => (before ? told.ready() : (before = true)));
      own.on("message", (/** @type {string} */ channel, /** @type {string} */ text) => told.message(channel, text));
      return {
        resubscribes: false,
        subscribe: (channel) => own.subscribe(channel),
        unsubscribe: (channel) => own.unsubscribe(channel),
        close: () => own.disconnect(),
      };
    },
  };
}

/** The name of a cell, as the protocol spells it. @param {{ host?: string, port?: number, path?: string }} place @param {number} database */
const cellName = ({ host = "localhost", port = 6379, path }, database) => `${path ?? `${host}:${port}`}/${database}`;
