// The test vectors of the protocol, which the Python client runs too: tests/protocol/vectors.json.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { KINDS, run } from "./vectors.js";

const { about, ...all } = JSON.parse(readFileSync(new URL("../../../tests/protocol/vectors.json", import.meta.url), "utf8"));

test("there is a reader for each kind of vector", () => {
  assert.deepEqual(Object.keys(all).toSorted(), Object.keys(KINDS).toSorted());
});

for (const [kind, vectors] of Object.entries(all)) {
  test(`${kind}: this package gives what the vectors say`, async () => {
    assert.ok(vectors.length);
    for (const vector of vectors) {
      const { found, wanted } = await run(kind, vector);
      assert.deepStrictEqual(found, wanted, vector.name);
    }
  });
}
