// The parser of server-sent events, cut everywhere.

import assert from "node:assert/strict";
import { test } from "node:test";
import { SseParser, messagesOf } from "../src/sse.js";
import { Unavailable } from "../src/index.js";

const STREAM =
  '\ufeffretry: 1500\n\n: heartbeat\n\nid: 1\ndata: {"text":"Grüße ☃ 😀"}\n\nid:2\r\ndata: a\r\ndata:b\r\n\r\nevent: end\rdata\r\r' +
  "id: x\0y\nnoise\nnoise: too\ndata:  two spaces\n\nevent: empty\n\ndata: not whole\n";
const MESSAGES = [
  { id: "1", type: "message", data: '{"text":"Grüße ☃ 😀"}' },
  { id: "2", type: "message", data: "a\nb" },
  { id: "2", type: "end", data: "" },
  { id: "2", type: "message", data: " two spaces" },
];

/** A body of these pieces. @param {Uint8Array[]} pieces */
const bodyOf = (pieces) => new ReadableStream({ start: (body) => (pieces.forEach((piece) => body.enqueue(piece)), body.close()) });

test("messages are read as the standard says", () => {
  const parser = new SseParser();
  assert.deepEqual([...parser.push(STREAM)], MESSAGES);
  assert.equal(parser.retryMs, 1500);
});

test("bytes may be split anywhere", async () => {
  const bytes = new TextEncoder().encode(STREAM);
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const found = [];
    for await (const one of messagesOf(bodyOf([bytes.slice(0, cut), bytes.slice(cut)]), new SseParser(), 5)) found.push(one);
    assert.deepEqual(found, MESSAGES, `cut at ${cut}`);
  }
  const single = [];
  for await (const one of messagesOf(bodyOf([...bytes].map((byte) => Uint8Array.of(byte))), new SseParser(), 5)) single.push(one);
  assert.deepEqual(single, MESSAGES);
});

test("a body that is silent for too long is dead", async () => {
  let cancelled = false;
  const silent = new ReadableStream({ cancel: () => void (cancelled = true) });
  await assert.rejects(messagesOf(silent, new SseParser(), 0.02).next(), Unavailable);
  assert.ok(cancelled);
});
