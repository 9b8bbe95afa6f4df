// What users install: its files, its types, and the example that is built on both.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { finished } from "../types.js";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const TSC = join(ROOT, "node_modules/typescript/bin/tsc");
const run = promisify(execFile);
const tsc = (...args) => run(process.execPath, [TSC, ...args], { cwd: ROOT }).catch((error) => assert.fail(error.stdout || error.stderr));

/** All files of a folder, by their paths in it. */
async function filesIn(folder) {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries.filter((one) => one.isFile()).map((one) => join(one.parentPath, one.name).slice(folder.length + 1)).toSorted();
}

const slow = { skip: process.env.ANTIPHON_NODE_SHORT ? "this is the short form: make node runs all" : false };

test("the sources keep their types, in Node", slow, () => tsc("--project", "tsconfig.json"));

test("over HTTP they use nothing that a browser lacks", slow, () => tsc("--project", "tsconfig.browser.json"));

test("a program in TypeScript knows every event, and its mistakes are found", () => tsc("--project", "tsconfig.use.json"));

test("the declarations are those of the sources", async () => {
  const folder = await mkdtemp(join(tmpdir(), "types-"));
  try {
    await tsc("--project", "tsconfig.types.json", "--outDir", folder);
    const made = await filesIn(folder);
    assert.deepEqual(await filesIn(join(ROOT, "types")), [...made, "types.d.ts"].toSorted(), "make them anew: npm run types");
    for (const name of made) assert.equal(await readFile(join(ROOT, "types", name), "utf8"), finished(name, await readFile(join(folder, name), "utf8")), name);
    assert.equal(await readFile(join(ROOT, "types/types.d.ts"), "utf8"), await readFile(join(ROOT, "src/types.d.ts"), "utf8"));
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("the package holds its sources, types and README, and depends on nothing", async () => {
  const { stdout } = await run("npm", ["pack", "--dry-run", "--json"], { cwd: ROOT });
  const packed = Object.values(JSON.parse(stdout))[0].files.map((file) => file.path).toSorted();
  const own = await Promise.all(["src", "types"].map(async (name) => (await filesIn(join(ROOT, name))).map((file) => `${name}/${file}`)));
  assert.deepEqual(packed, ["README.md", "package.json", ...own.flat()].toSorted());
  const { dependencies = {}, exports } = JSON.parse(await readFile(join(ROOT, "package.json"), "utf8"));
  assert.deepEqual(dependencies, {});
  for (const { types, default: source } of Object.values(exports)) {
    for (const file of [types, source]) assert.ok(packed.includes(file.slice(2)), file);
  }
});

test("it is imported by its name", async () => {
  const [{ Client }, { RedisClient }] = [await import("antiphon"), await import("antiphon/redis")];
  assert.ok(Client && RedisClient);
});
