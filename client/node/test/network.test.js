// A gateway that fails in every way: cut at every byte, overloaded, silent, slow. Here it is a server of the test's own.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import { createServer as createRawServer } from "node:net";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { AlreadyDecided, Client, StreamGap, TooMany, Unauthorized, Unavailable } from "../src/index.js";
import { RedisClient } from "../src/redis/index.js";

const HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const STRIDE = process.env.ANTIPHON_NODE_SHORT ? 7 : 1; // the short form cuts at every seventh byte
const textOfEvent = (seq) => JSON.stringify({ seq, at: seq, type: "text_delta", turn_id: "t", text: `ü${seq}` });
const message = (seq) => `id: ${seq}\ndata: ${textOfEvent(seq)}\n\n`;
const chunk = (text) => `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`;

/** Serve for one test. @param {import("node:test").TestContext} t @param {(request: any, response: any, number: number) => void} handle */
async function serve(t, handle) {
  let number = 0;
  const server = createServer((request, response) => handle(request, response, (number += 1)));
  t.after(() => (server.closeAllConnections(), server.close()));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { url: `http://127.0.0.1:${server.address().port}`, server };
}

const stream = (response, ...parts) => {
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const part of parts) response.write(part);
};
const problem = (response, status, code, more = {}, headers = {}) => {
  response.writeHead(status, { "content-type": "application/problem+json", ...headers });
  response.end(JSON.stringify({ title: "no", status, code, detail: "Do this.", ...more }));
};
const json = (response, value, status = 200) => {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(value));
};
const END = "event: end\ndata: {}\n\n";

async function all(events) {
  const found = [];
  for await (const event of events) found.push(event);
  return found;
}

test("a connection that is cut at any byte of its events gives each of them once", async (t) => {
  const parts = ["retry: 1\n\n", ...[1, 2].map(message)];
  const whole = Buffer.from(HEAD + parts.map(chunk).join(""));
  const server = createRawServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", (data) => {
      const head = data.toString();
      const cut = Number(/GET \/(\d+)\//.exec(head)[1]);
      const last = Number(/last-event-id: (\d+)/i.exec(head)?.[1] ?? -1);
      if (last < 0 && !cuts.has(cut)) {
        cuts.add(cut);
        socket.write(whole.subarray(0, cut), () => socket.destroy());
      } else {
        const rest = [1, 2, 3].filter((seq) => seq > last).map(message);
        socket.end(HEAD + [...rest, END].map(chunk).join("") + "0\r\n\r\n");
      }
    });
  });
  const cuts = new Set();
  t.after(() => server.close());
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const base = `http://127.0.0.1:${server.address().port}`;
  const places = Array.from({ length: whole.length + 1 }, (_, cut) => cut).filter((cut) => cut % STRIDE === 0);
  await Promise.all(
    places.map(async (cut) => {
      const events = await all(new Client(`${base}/${cut}`).turn("t").events());
      assert.deepEqual(events.map((event) => event.seq), [1, 2, 3], `cut at ${cut}`);
      assert.equal(events[1].text, "ü2");
    }),
  );
  assert.equal(cuts.size, places.length);
});

test("a stream of many sessions comes back with its last id, and its cursor is that of the event given", async (t) => {
  const asked = [];
  const placed = (id, seq) => message(seq).replace(`id: ${seq}`, `id: ${id}`);
  const { url } = await serve(t, (request, response, number) => {
    asked.push([request.url, request.headers["last-event-id"]]);
    if (number === 1) stream(response, "retry: 1\n\n", placed("1.0", 1), placed("1.1", 1), "id: 2.1\ndata: {");
    else stream(response, placed("2.1", 2), END);
    response.end();
  });
  const events = new Client(url).events({ sessions: ["a", "b é"], types: ["text_delta"], after: "0.0" });
  assert.equal(events.cursor, "0.0");
  const seen = [];
  for await (const event of events) seen.push([event.seq, events.cursor]);
  assert.deepEqual(seen, [[1, "1.0"], [1, "1.1"], [2, "2.1"]]);
  assert.deepEqual(asked.map(([, last]) => last), ["0.0", "1.1"]);
  const { pathname, searchParams } = new URL(asked[1][0], url);
  assert.deepEqual([pathname, ...searchParams], ["/events", ["sessions", '["a","b é"]'], ["types", "text_delta"]]);
});

test("an overloaded gateway is asked again when it said so, by calls and by streams", async (t) => {
  const times = [];
  const { url } = await serve(t, (request, response, number) => {
    times.push(Date.now());
    if (number % 2) return problem(response, number === 1 ? 503 : 429, "too_many_requests", {}, { "retry-after": "1" });
    if (request.url.endsWith("/events")) return stream(response, message(1), END), response.end();
    return json(response, { turn_id: "t", session_id: "s", status: "finished", response: { text: "Hi" } });
  });
  const turn = new Client(url).turn("t");
  assert.equal((await turn.result()).text, "Hi");
  assert.equal((await all(turn.events())).length, 1);
  assert.ok(times[1] - times[0] >= 990 && times[3] - times[2] >= 990, String(times));
});

test("what takes longer than the caller's patience is said at once", async (t) => {
  const { url } = await serve(t, (_, response) => problem(response, 429, "too_many_streams", {}, { "retry-after": "60" }));
  const client = new Client(url, { patience: 5 });
  const began = Date.now();
  await assert.rejects(client.session("s").snapshot(), (error) => error instanceof TooMany && error.retryAfter === 60 && error.code === "too_many_streams");
  await assert.rejects(client.turn("t").events().next(), TooMany);
  assert.ok(Date.now() - began < 3000);
});

test("a gateway that has come to its end for good is given up after the caller's patience", async (t) => {
  let opened = 0;
  const { url } = await serve(t, (_, response) => (stream(response, "retry: 1\n\n"), response.end(), (opened += 1)));
  await assert.rejects(new Client(url, { patience: 3 }).turn("t").events().next(), Unavailable);
  assert.ok(opened > 1 && opened < 30, String(opened));
});

test("the end of a stream may be an error", async (t) => {
  const { url } = await serve(t, (_, response) => (stream(response, message(1), 'event: end\ndata: {"code":"stream_gap"}\n\n'), response.end()));
  const events = new Client(url).session("s").events({ after: 0 });
  assert.equal((await events.next()).value.seq, 1);
  await assert.rejects(events.next(), StreamGap);
  assert.equal((await events.next()).done, true);
});

test("something else at the address is no gateway", async (t) => {
  const { url } = await serve(t, (_, response) => (response.writeHead(200, { "content-type": "text/html" }), response.end("<h1>Log in</h1>")));
  const client = new Client(url, { patience: 0.1 });
  await assert.rejects(client.turn("t").events().next(), /text\/html/);
  await assert.rejects(client.session("s").snapshot(), /no JSON/);
});

test("a token that has expired is said, and a fresh one is asked for at each connection", async (t) => {
  const seen = [];
  const { url } = await serve(t, (request, response, number) => {
    seen.push(request.headers.authorization);
    if (number === 3) return problem(response, 401, "unauthorized");
    stream(response, "retry: 1\n\n", message(number));
    return response.end();
  });
  let number = 0;
  const events = new Client(url, { key: () => `k${(number += 1)}` }).session("s").events({ after: 0 });
  assert.equal((await events.next()).value.seq, 1);
  assert.equal((await events.next()).value.seq, 2);
  await assert.rejects(events.next(), Unauthorized);
  assert.deepEqual(seen, ["Bearer k1", "Bearer k2", "Bearer k3"]);
});

test("an answer that is lost does nothing twice", async (t) => {
  const keys = [];
  const decided = [];
  const { url } = await serve(t, (request, response) => {
    let body = "";
    request.on("data", (part) => (body += part));
    request.on("end", () => {
      const given = body ? JSON.parse(body) : {};
      if (request.url === "/sessions/s/turns") {
        if (keys.push(given.key) === 1) return request.socket.destroy();
        return json(response, { turn_id: "t", session_id: "s" }, 202);
      }
      if (request.method === "GET") return json(response, { turn_id: "t", decisions: decided });
      if (decided.length) return problem(response, 409, "already_decided");
      decided.push({ call_id: "c", kind: "approve", by: given.by ?? "shop" });
      return request.socket.destroy();
    });
  });
  const client = new Client(url);
  const turn = await client.submit("s", "Hello");
  assert.equal(keys.length, 2);
  assert.equal(keys[0], keys[1]);
  await turn.approve("c", { by: "ada" });
  await assert.rejects(turn.approve("c", { by: "ada" }), AlreadyDecided);
  await assert.rejects(turn.reject("c"), AlreadyDecided);
});

test("a reader that is slow holds the server back, and little memory", async (t) => {
  const big = `id: 1\ndata: ${JSON.stringify({ seq: 1, at: 1, type: "text_delta", text: "x".repeat(1000) })}\n\n`;
  let sent = 0;
  const { url } = await serve(t, (_, response) => {
    stream(response);
    const more = () => {
      while (sent < 200e6 && response.write(big)) sent += big.length;
      response.once("drain", more);
    };
    more();
  });
  const events = new Client(url).turn("t").events();
  await events.next();
  let before = -1;
  while (before !== sent) {
    before = sent;
    await new Promise((done) => setTimeout(done, 200));
  }
  assert.ok(sent < 50e6, `${sent} bytes were taken for one event`);
  await events.close();
});

// What a program does and then has nothing left that keeps its process.
const MOMENTS = {
  "an abort before it begins": "const events = turn.events({ signal: stop.signal }); stop.abort(); await fails(events.next());",
  "an abort before the answer": "const next = turn.events({ signal: stop.signal }).next(); await soon(); stop.abort(); await fails(next);",
  "an abort between events":
    "const events = session.events({ after: 0, signal: stop.signal }); await events.next(); const next = events.next(); await soon(); stop.abort(); await fails(next);",
  "an abort while the reader is busy": "const events = session.events({ after: 0, signal: stop.signal }); await events.next(); stop.abort();",
  "an abort while it waits to come back": "const next = lost.events({ after: 0, signal: stop.signal }).next(); await soon(); stop.abort(); await fails(next);",
  "a break": "for await (const event of session.events({ after: 0 })) break;",
  "a break in many sessions": "for await (const event of client.events({ sessions: [\"s\"] })) break;",
  "a close while the reader waits": "const events = turn.events(); const next = events.next(); await soon(); await events.close(); await next;",
  "an abort in a result": "const next = turn.result({ signal: stop.signal }); await soon(); stop.abort(); await fails(next);",
  "a result": "await ended.result();",
  "a result that comes too late": "await fails(turn.result({ timeout: 0.1 }));",
  "an error": "await fails(refused.events().next()); await fails(refused.result());",
};

test("nothing is left of what has ended: no timer, no socket, and the process ends", async (t) => {
  const { url, server } = await serve(t, (request, response) => {
    if (request.url.includes("/ended/")) return json(response, { turn_id: "t", session_id: "s", status: "finished", response: {} });
    if (request.url.includes("/lost/")) return request.socket.destroy();
    if (request.url.includes("/refused/")) return problem(response, 403, "forbidden");
    return /\/sessions\/|sessions=/.test(request.url) && stream(response, message(1)); // a turn is never answered
  });
  const program = `
    import { Client } from ${JSON.stringify(fileURLToPath(new URL("../src/index.js", import.meta.url)))};
    const client = new Client(${JSON.stringify(url)});
    const [turn, ended, refused] = ["t", "ended", "refused"].map((id) => client.turn(id));
    const [session, lost] = ["s", "lost"].map((id) => client.session(id));
    const soon = () => new Promise((done) => setTimeout(done, 50));
    const fails = (promise) => promise.then(() => console.log("it does not fail"), () => {});
    const held = () => process.getActiveResourcesInfo().filter((one) => one !== "PipeWrap").join();
    const moments = { ${Object.entries(MOMENTS).map(([name, line]) => `${JSON.stringify(name)}: async (stop) => { ${line} }`).join(",")} };
    for (const [name, moment] of Object.entries(moments)) {
      await moment(new AbortController());
      for (let tries = 0; held() && tries < 40; tries += 1) await soon();
      if (held()) console.log(name, "leaves", held());
    }
    console.log("done");`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
  let printed = "";
  child.stdout.on("data", (data) => (printed += data));
  const late = setTimeout(() => child.kill("SIGKILL"), 40_000);
  const [code, signal] = await once(child, "close");
  clearTimeout(late);
  assert.deepEqual([code, signal, printed], [0, null, "done\n"]);
  assert.equal(await new Promise((done) => server.getConnections((_, number) => done(number))), 0);
});

test("a node of a Redis Cluster is refused with what to use instead", async () => {
  for (const said of ["MOVED 866 127.0.0.1:7001", "CROSSSLOT Keys in request don't hash to the same slot"]) {
    const node = { sendCommand: async () => Promise.reject(new Error(said)), multi: () => ({}) };
    const client = new RedisClient({ ...node, isOpen: true, options: {}, withTypeMapping: () => node });
    await assert.rejects(client.submit("s", "Hello"), { code: "store_unsupported", message: /use Client .* with the URL of a gateway/ });
  }
});
