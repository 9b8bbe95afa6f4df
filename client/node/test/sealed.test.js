// What a deployment with encryption has sealed is refused with an error of its own.

import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeEvent, decodeMessage, decodeResponse } from "../src/values.js";
import { responseIn } from "../src/redis/client.js";

const SEALED = '"\\u007f1:event:k1.00000000:AAAA"';
const BEGINNING = '{"seq":1,"at":1,"session_id":"s","turn_id":"t"';

test("a sealed record is refused, wherever in it something is sealed", () => {
  const missing = { code: "key_missing" };
  assert.throws(() => decodeEvent(`${BEGINNING},"type":"text_delta","sealed":${SEALED}}`), missing);
  assert.throws(() => decodeEvent(`${BEGINNING},"type":"turn_queued","input":${SEALED}}`), missing);
  assert.throws(() => decodeEvent(`${BEGINNING},"type":"turn_suspended","calls":[{"call_id":"c","sealed":${SEALED}}]}`), missing);
  assert.throws(() => decodeMessage(SEALED), missing);
  assert.throws(() => decodeResponse(SEALED), missing);
});

test("what a user wrote is never taken for it", () => {
  const text = "\u007f1:event:k1.00000000:AAAA";
  assert.equal(/** @type {any} */ (decodeEvent(`${BEGINNING},"type":"text_delta","text":${JSON.stringify(text)}}`)).text, text);
});

test("why a turn failed is not shown where it is sealed", () => {
  const fields = { error: "\u007f1:reason:k1.00000000:AAAA", error_code: "provider_rejected" };
  const record = /** @type {any} */ ({ status: "failed", session: "s", fields });
  assert.throws(() => responseIn("t", record), { code: "provider_rejected", message: "The turn failed." });
});
