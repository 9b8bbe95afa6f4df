// Straight from Redis, with node-redis and with ioredis, against a real worker and Valkey behind a proxy that fails.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Redis as Ioredis } from "ioredis";
import { createClient, createCluster } from "redis";
import { textOf } from "../../src/index.js";
import { NotFound, RedisClient, Refused, ResultTimeout, StreamGap, TurnCancelled, TurnFailed, Unavailable, UsageError } from "../../src/redis/index.js";
import { Client } from "../../src/index.js";
import { STAGE, all, newSession, seesNothingOfALaterSession, sharedStand, textIn } from "./stand.js";

/** @type {any} */
let stand;
/** @type {Client} */
let gateway;
const agent = { ...STAGE, tools: ["note", "wait"] };

before(async () => {
  stand = await sharedStand();
  gateway = new Client(stand.gateway, { key: stand.key });
});

const LIBRARIES = {
  "node-redis": {
    async open(url) {
      const redis = createClient({ url });
      redis.on("error", () => {});
      return redis.connect();
    },
    close: (redis) => redis.destroy(),
  },
  ioredis: {
    async open(url) {
      const redis = new Ioredis(url);
      redis.on("error", () => {});
      return redis;
    },
    close: (redis) => redis.disconnect(),
  },
};

const dense = (events) => assert.deepEqual(events.map(({ seq }) => seq), events.map((_, place) => events[0].seq + place));

for (const [name, { open, close }] of Object.entries(LIBRARIES)) {
  describe(name, () => {
    /** @type {any} */
    let redis;
    /** @type {RedisClient} */
    let client;
    before(async () => {
      redis = await open(stand.proxied);
      client = new RedisClient(redis);
    });
    after(async () => {
      close(redis);
      await stand.ask("connections", { number: 0 }); // nothing of it is left
    });

    test("a turn is submitted, followed and read", async () => {
      const id = newSession();
      const turn = await client.submit(id, "Hello 😀", { agent, metadata: { from: "node" }, priority: "high", tenant: "acme", ttl: null, if_busy: "reject" });
      const [events, response] = await Promise.all([all(turn.events()), turn.result()]);
      assert.equal(events[0].type, "turn_queued");
      dense(events);
      assert.equal(events.at(-1).response.text, response.text);
      assert.equal(textIn(events), response.text);
      assert.equal(await turn.status(), "finished");
      const { messages, cursor, turn_id } = await client.session(id).snapshot();
      assert.deepEqual(messages.map((message) => [message.role, textOf(message)]), [["user", "Hello 😀"], ["assistant", response.text]]);
      assert.deepEqual([cursor, turn_id], [events.at(-1).seq, null]);
      assert.deepEqual(await all(client.turn(turn.id).events({ after: cursor })), []);
      assert.deepEqual(await all(gateway.turn(turn.id).events()), events);
      await stand.ask("connections", { number: 1 });
    });

    test("a key is one turn, in every language and by every way", async () => {
      const id = newSession();
      const [first, second] = await Promise.all([1, 2].map(() => client.submit(id, "Hello", { agent, key: "k é😀" })));
      assert.equal(first.id, second.id);
      await first.result();
      assert.equal((await client.submit(id, "Hello", { agent, key: "k é😀" })).id, first.id);
      const python = await stand.ask("submit", { session: id, text: "By Python", key: "p", agent });
      const known = await client.submit(id, "By Python", { agent, key: "p" });
      assert.equal(known.id, python);
      assert.equal(await stand.ask("submit", { session: id, text: "Hello", key: "k é😀", agent }), first.id);
      await known.result();
      assert.equal((await client.session(id).snapshot()).messages.length, 4);
    });

    test("an answer that is lost submits once", async () => {
      const id = newSession();
      await stand.ask("lose_reply", { matching: "EVAL" });
      const turn = await client.submit(id, "Hello", { agent });
      await turn.result();
      assert.equal((await client.session(id).snapshot()).messages.length, 2);
      await stand.ask("heal");
    });

    test("connections are cut, and each event comes once", async () => {
      const id = newSession();
      const [g, h] = [`${id}-g`, `${id}-h`];
      const turn = await client.submit(id, `go words:20 gate:${g} words:20 gate:${h} words:20`, { agent });
      const [reading, whole, result] = [all(turn.events()), all(client.session(id).events({ after: 0 }), (event) => event.type === "turn_finished"), turn.result()];
      await stand.ask("waits", { gate: g });
      await stand.ask("cut");
      await stand.ask("open", { gate: g });
      await stand.ask("waits", { gate: h });
      await stand.ask("refuse");
      await stand.ask("open", { gate: h });
      await gateway.turn(turn.id).result();
      await stand.ask("heal");
      const events = await reading;
      dense(events);
      assert.deepEqual(await whole, events);
      assert.equal(events.at(-1).response.text, (await result).text);
      assert.deepEqual(events, await all(gateway.turn(turn.id).events()));
    });

    test("a network that swallows everything for a while loses nothing", async () => {
      const id = newSession();
      await (await client.submit(id, "one", { agent })).result();
      const stream = client.session(id).events({ after: 0 });
      const before = [];
      while (before.at(-1)?.type !== "turn_finished") before.push((await stream.next()).value);
      const coming = all(stream, (event) => event.type === "turn_finished");
      await stand.ask("blackhole");
      const turn = await gateway.submit(id, "two", { agent });
      await turn.result();
      await stand.ask("heal");
      dense([...before, ...(await coming)]);
    });

    test("a job that is refused, a turn that fails, one that is cancelled and one that does not exist", async () => {
      const id = newSession();
      const refused = await client.submit(id, "Hello", { agent: /** @type {any} */ ({ provider: "stage" }) });
      await assert.rejects(refused.result(), (error) => error instanceof Refused && error.message.length > 10);
      await assert.rejects(all(refused.events()), Refused);
      const failed = await client.submit(id, "fail:rejected", { agent });
      await assert.rejects(failed.result(), (error) => error instanceof TurnFailed && error.code === "provider_rejected" && error.sessionId === id);
      const turn = await client.submit(id, `go gate:${id}`, { agent });
      await stand.ask("waits", { gate: id });
      await assert.rejects(turn.result({ timeout: 0.05 }), ResultTimeout);
      await gateway.turn(turn.id).cancel();
      await assert.rejects(turn.result(), TurnCancelled);
      await assert.rejects(client.turn("0".repeat(32)).result(), NotFound);
      await assert.rejects(client.submit(id, "Hello", { colour: "blue" }), UsageError);
      await assert.rejects(client.submit("a\nb", "Hello"), UsageError);
    });

    test("a turn of a deleted session is not read before a worker has erased it", async () => {
      const id = newSession();
      const turn = await client.submit(id, "Hello", { agent });
      await turn.result();
      await stand.ask("end_session", { session: id, how: "gone" }); // its deletion does not find the turn
      await stand.ask("delete", { session: id });
      await assert.rejects(client.turn(turn.id).result(), (error) => error instanceof NotFound && error.code === "turn_deleted");
    });

    test("a session that was deleted and begun anew is a gap", async () => {
      const id = newSession();
      const turn = await client.submit(id, "one words:20", { agent });
      const last = (await all(turn.events())).at(-1).seq;
      const stream = client.session(id).events({ after: 0 });
      for (let seq = 0; seq < last; ) seq = (await stream.next()).value.seq;
      const coming = assert.rejects(stream.next(), StreamGap);
      await stand.ask("delete", { session: id });
      await (await client.submit(id, "anew words:40", { agent })).result();
      await coming;
      await assert.rejects(client.session(id).events({ after: last * 10 }).next(), StreamGap);
    });

    test("a reader sees nothing of a later session with the same id", () =>
      seesNothingOfALaterSession(stand, gateway, {
        submit: (id, text, options) => client.submit(id, text, { agent, ...options }),
        events: (id, options) => client.session(id).events(options),
      }));

    test("a slow reader gets all of it, and holds little", async () => {
      const id = newSession();
      const turn = await client.submit(id, "go words:50", { agent });
      const found = [];
      for await (const event of turn.events()) {
        found.push(event);
        if (found.length === 2) await turn.result();
      }
      dense(found);
      assert.equal(found.at(-1).type, "turn_finished");
    });

    test("an abort and a close end whatever waits", async () => {
      const id = newSession();
      const stop = new AbortController();
      const stream = client.session(id).events({ after: 0, signal: stop.signal });
      const coming = assert.rejects(stream.next(), /enough/);
      stop.abort(new Error("enough"));
      await coming;
      const other = client.session(id).events({ after: 0 });
      const pending = other.next();
      await other.close();
      assert.deepEqual(await pending, { done: true, value: undefined });
      await stand.ask("connections", { number: 1 });
    });

    test("Redis that is away is said after a while", async () => {
      const impatient = new RedisClient(redis, { patience: 0.5 });
      await stand.ask("refuse");
      await stand.ask("cut");
      await assert.rejects(impatient.session("s").snapshot(), Unavailable);
      await stand.ask("heal");
      await client.session("s").snapshot();
    });
  });
}

test("a client that is no client, is closed or hides keys is refused", async () => {
  assert.throws(() => new RedisClient({}), UsageError);
  assert.throws(() => new RedisClient([]), UsageError);
  assert.throws(() => new RedisClient(new Ioredis({ keyPrefix: "x:", lazyConnect: true })), /keyPrefix/);
  assert.throws(() => new RedisClient(createCluster({ rootNodes: [{ url: stand.redis }] })), /use Client .* with the URL of a gateway/);
  assert.throws(() => new RedisClient(new Ioredis.Cluster([stand.redis], { lazyConnect: true })), /use Client .* with the URL of a gateway/);
  await assert.rejects(new RedisClient(createClient({ url: stand.redis })).session("s").snapshot(), /connect/);
});

test("with several cells, a session lives where all look for it", async () => {
  const urls = [stand.redis, stand.redis.replace("/0", "/1")];
  const clients = await Promise.all(urls.map(LIBRARIES["node-redis"].open));
  const cells = new RedisClient(clients);
  const turns = await Promise.all([..."abcdefghijklmnopqrstuvwx"].map((id) => cells.submit(id, "Hello", { queue: "nobody" })));
  const here = await Promise.all(turns.map((turn) => clients[0].exists(`rq:job:${turn.id}`)));
  assert.ok(new Set(here).size === 2, "both cells have some");
  for (const turn of turns) assert.equal(await cells.turn(turn.id).status(), "submitted");
  clients.forEach((one) => one.destroy());
});
