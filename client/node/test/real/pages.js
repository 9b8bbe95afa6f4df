// The code of docs/node.md and of examples/node, as it stands but for addresses and agents.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Client } from "../../src/index.js";
import { STAGE, newSession, sharedStand } from "./stand.js";

const ROOT = new URL("../../../../", import.meta.url);
const HERE = new URL("../../.pages/", import.meta.url); // where imports find the package and its neighbours

/** @type {any} */
let stand;
before(async () => {
  stand = await sharedStand();
});

/** Starts a program; `output` is what it has printed. */
async function start(t, name, source, ...args) {
  const file = fileURLToPath(new URL(`${name}-${process.pid}.mjs`, HERE));
  await mkdir(HERE, { recursive: true });
  await writeFile(file, source.replaceAll('"assistant"', JSON.stringify(STAGE)).replaceAll("http://localhost:8700", stand.gateway).replaceAll("redis://localhost:6379/0", stand.redis));
  const child = spawn(process.execPath, [file, ...args], { env: { ...process.env, ANTIPHON_KEY: stand.key }, stdio: ["pipe", "pipe", "inherit"] });
  const program = { child, output: "" };
  child.stdout.on("data", (data) => (program.output += data));
  t.after(async () => {
    child.kill("SIGKILL");
    await rm(HERE, { recursive: true, force: true });
  });
  return program;
}

test("the code of the page runs from top to bottom, and its process ends", async (t) => {
  const page = await readFile(new URL("docs/node.md", ROOT), "utf8");
  const blocks = [...page.matchAll(/^```js\n(.*?)^```$/gms)].map((found) => found[1]);
  assert.equal(blocks.length, 4);
  const source = blocks.join("").replaceAll("user-123", newSession()).replaceAll("user-456", newSession());
  const again = source.replace("for await (const event of events)", "await session.submit('more', { agent: \"assistant\" });\nfor await (const event of events)");
  assert.notEqual(again, source);
  const program = await start(t, "page", again);
  assert.deepEqual(await once(program.child, "close"), [0, null]);
  assert.equal(program.output.match(/The first words\. I was shown 1 messages/g).length, 4, program.output);
  assert.match(program.output, /go on later with \{ after: \d+ \}/);
});

test("the conversation in the terminal stops an answer, and shows one that is being written", async (t) => {
  const source = await readFile(new URL("examples/node/chat.mjs", ROOT), "utf8");
  const [id, gate] = [newSession(), newSession()];
  const first = await start(t, "first", source, id);
  first.child.stdin.write(`Hello\n\ngo gate:${gate}-never\n`);
  await stand.ask("waits", { gate: `${gate}-never` });
  first.child.kill("SIGINT");
  first.child.stdin.end();
  assert.deepEqual(await once(first.child, "close"), [0, null]);
  assert.match(first.output, /I was shown 1 messages.*\n.*\(stopped\)\n$/);
  await new Client(stand.gateway, { key: stand.key }).submit(id, `go gate:${gate}`, { agent: STAGE });
  await stand.ask("waits", { gate });
  const second = await start(t, "second", source, id);
  second.child.stdin.end();
  while (!/user: go gate:\S+\nThe first words\. $/.test(second.output)) await once(second.child.stdout, "data");
  await stand.ask("open", { gate });
  assert.deepEqual(await once(second.child, "close"), [0, null]);
  assert.match(second.output, /^user: Hello\nassistant: The first words.*\nuser: go.*\nassistant: The first words\. \nuser: go.*\nThe first words\. I was shown \d+ messages.*\n$/);
});
