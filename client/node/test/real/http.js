// Over HTTP, against a real gateway, worker and Valkey, which are killed in mid-answer.

import assert from "node:assert/strict";
import { before, test } from "node:test";
import { AlreadyDecided, Client, KeyReused, NotFound, ResultTimeout, StreamGap, TurnCancelled, TurnFailed, Unauthorized, Unavailable, UsageError, textOf } from "../../src/index.js";
import { STAGE, all, newSession, seesNothingOfALaterSession, sharedStand, slow, textIn } from "./stand.js";

/** @type {any} */
let stand;
/** @type {Client} */
let client;
const agent = STAGE;

before(async () => {
  stand = await sharedStand();
  client = new Client(stand.gateway, { key: stand.key });
});

const seqs = (events) => events.map((event) => event.seq);
function later() {
  let resolve;
  const promise = new Promise((done) => (resolve = done));
  return { promise, resolve };
}
const dense = (events) => assert.deepEqual(seqs(events), events.map((_, place) => events[0].seq + place));

test("a turn is submitted, followed and read", async () => {
  const id = newSession();
  const turn = await client.submit(id, "Hello", { agent });
  const events = await all(turn.events());
  assert.equal(events[0].type, "turn_queued");
  assert.equal(events.at(-1).type, "turn_finished");
  dense(events);
  const response = await turn.result();
  assert.equal(textIn(events), response.text);
  assert.equal(response.usage.cached_input_tokens, 0);
  assert.equal(events.at(-1).response.text, response.text);
  assert.equal((await turn.info()).status, "finished");
  const { messages, length } = await client.session(id).history();
  assert.deepEqual(messages.map((message) => [message.role, textOf(message)]), [["user", "Hello"], ["assistant", response.text]]);
  assert.equal(length, 2);
  assert.deepEqual((await client.session(id).snapshot()).cursor, events.at(-1).seq);
});

test("a file is stored once, said by its id, and read again", async () => {
  const session = client.session(newSession());
  const content = new Uint8Array(300_000).map((_, place) => place % 251);
  const file = await session.addFile(content, { name: "cat.png", mediaType: "image/png" });
  assert.deepEqual(await session.addFile(new Blob([content], { type: "image/png" })), file);
  assert.deepEqual([file.type, file.media_type], ["image", "image/png"]);
  await (await session.submit([{ type: "text", text: "Look." }, file], { agent })).result();
  assert.deepEqual((await session.history()).messages[0].parts[1], file);
  const { files } = await client.call("list_files", { session: session.id });
  assert.deepEqual(files.map((one) => [one.id, one.size, one.name]), [[file.id, 300_000, "cat.png"]]);
  const blob = await session.readFile(file.id ?? "");
  assert.deepEqual(new Uint8Array(await blob.arrayBuffer()), content);
  await client.call("remove_file", { session: session.id, file: file.id ?? "" });
  await assert.rejects(session.readFile(file.id ?? ""), NotFound);
});

test("an id with all that an address could mistake is the session that it names", async () => {
  for (const id of [`${newSession()}/../a?b=c#d%2F é😀`, `${newSession()} + &`]) {
    const turn = await client.submit(id, "Hello", { agent });
    assert.equal(turn.sessionId, id);
    await turn.result();
    assert.equal((await client.session(id).snapshot()).messages.length, 2);
  }
  for (const id of ["", ".", ".."]) await assert.rejects(client.submit(id, "Hello"), UsageError);
});

test("a key submits once, and refuses another request", async () => {
  const id = newSession();
  const [first, second] = [await client.submit(id, "Hello", { agent, key: "k" }), await client.submit(id, "Hello", { agent, key: "k" })];
  assert.equal(first.id, second.id);
  await assert.rejects(client.submit(id, "Other", { agent, key: "k" }), KeyReused);
  await first.result();
  const { length } = await client.session(id).history();
  assert.equal(length, 2);
});

test("any operation is called by its name, with its path, query and body", async () => {
  const id = `${newSession()} é/1`;
  await client.call("create_session", { session_id: id, metadata: { of: id } });
  const { sessions } = await client.call("list_sessions", { metadata: JSON.stringify({ of: id }), limit: 5 });
  assert.deepEqual(sessions.map((one) => one.session_id), [id]);
  const { turn_id } = await client.call("submit_turn", { session: id, input: "Hello", agent, priority: "high", key: "k" });
  assert.equal((await client.submit(id, "Hello", { agent, priority: "high", key: "k" })).id, turn_id);
  await client.turn(turn_id).result();
  const { cursor } = await client.session(id).snapshot();
  await assert.rejects(client.submit(id, "Again", { agent, cursor: cursor - 1 }), { code: "session_changed" });
  await client.call("change_session", { session: id, variables: { plan: "paid" } });
  assert.equal((await client.call("show_session", { session: id })).messages, 2);
  await assert.rejects(client.call("show_session", { session: newSession() }), { code: "session_not_found" });
});

test("gateway and worker are killed in mid-answer, and the answer comes whole and once", async () => {
  const id = newSession();
  const [g, h] = [`${id}-g`, `${id}-h`];
  const turn = await client.submit(id, `go gate:${g} gate:${h}`, { agent });
  const [reading, result] = [all(turn.events()), turn.result()];
  await stand.ask("waits", { gate: g });
  await stand.ask("kill_gateway");
  await stand.ask("open", { gate: g });
  await stand.ask("waits", { gate: h });
  await stand.ask("kill_worker");
  const submitted = client.submit(id, "and then", { agent }); // while there is no gateway
  await stand.ask("start_gateway");
  await stand.ask("start_worker");
  await stand.ask("waits", { gate: h, times: 2 });
  await stand.ask("open", { gate: h });
  const events = await reading;
  assert.equal(events.filter((event) => event.type === "turn_finished").length, 1);
  assert.equal(new Set(seqs(events)).size, events.length);
  assert.deepEqual(seqs(events), seqs(events).toSorted((a, b) => a - b));
  assert.equal(textIn(events), (await result).text);
  assert.equal((await (await submitted).result()).session_id, id);
  const whole = await all(client.session(id).events({ after: 0 }), (event) => event.type === "turn_finished" && event.turn_id !== turn.id);
  dense(whole);
  assert.deepEqual(seqs(events), seqs(whole.filter((event) => event.turn_id === turn.id)));
});

test("a session is followed from the running turn's first event, and from a cursor", async () => {
  const id = newSession();
  await (await client.submit(id, "one", { agent })).result();
  const turn = await client.submit(id, `two gate:${id}`, { agent });
  await stand.ask("waits", { gate: id });
  const stream = client.session(id).events();
  const first = (await stream.next()).value;
  assert.equal(first.turn_id, turn.id);
  assert.equal(stream.cursor, first.seq);
  await stream.close();
  assert.deepEqual(await stream.next(), { done: true, value: undefined });
  await stand.ask("open", { gate: id });
  const rest = await all(client.session(id).events({ after: stream.cursor }), (event) => event.type === "turn_finished");
  assert.equal(rest[0].seq, first.seq + 1);
  dense(rest);
  const only = await all(turn.events({ types: ["turn_started", "turn_finished"] }));
  assert.deepEqual(only.map((event) => event.type), ["turn_started", "turn_finished"]);
});

test("many sessions are followed in one stream, which goes on at another connection", slow, async () => {
  const ids = [newSession(), newSession()];
  const turns = await Promise.all(ids.map((id) => client.submit(id, "Hello", { agent })));
  await Promise.all(turns.map((turn) => turn.result()));
  const finished = (count) => (event) => event.type === "turn_finished" && (count -= 1) === 0;
  const first = client.events({ sessions: ids, after: "0" });
  const events = [(await first.next()).value, (await first.next()).value, (await first.next()).value];
  await first.close();
  events.push(...(await all(client.events({ sessions: ids, after: first.cursor }), finished(2 - events.filter((one) => one.type === "turn_finished").length))));
  for (const id of ids) {
    const whole = await all(client.session(id).events({ after: 0 }), finished(1));
    assert.deepEqual(events.filter((event) => event.session_id === id), whole);
  }
  const answered = later();
  const fetching = async (...asked) => fetch(...asked).finally(answered.resolve);
  const ends = new Client(stand.gateway, { key: stand.key, fetch: fetching }).events({ types: ["turn_finished"] });
  const coming = ends.next(); // the ends are kept from the first reader on
  await answered.promise;
  const more = [];
  for (const id of ids) {
    more.push(await client.submit(id, "Again", { agent }));
    await more.at(-1).result();
  }
  assert.equal((await coming).value.turn_id, more[0].id);
  await ends.close();
  const [next] = await all(client.events({ after: ends.cursor }), () => true);
  assert.deepEqual([next.type, next.turn_id], ["turn_finished", more[1].id]);
  await assert.rejects(client.events({ sessions: [] }).next(), UsageError);
});

test("a turn is cancelled, and a failed one says why", async () => {
  const id = newSession();
  const turn = await client.submit(id, `go gate:${id}`, { agent });
  await stand.ask("waits", { gate: id });
  await assert.rejects(turn.result({ timeout: 0.05 }), ResultTimeout);
  assert.equal(await client.session(id).cancel({ keep: "partial", reason: "enough" }), "requested");
  await assert.rejects(turn.result(), (error) => error instanceof TurnCancelled && error.code === "turn_cancelled" && error.turnId === turn.id);
  assert.equal((await all(turn.events())).at(-1).reason, "enough");
  const failed = await client.submit(id, "fail:rejected", { agent });
  await assert.rejects(failed.result(), (error) => error instanceof TurnFailed && error.code === "provider_rejected" && error.userMessage.endsWith("try again."));
  assert.equal(await failed.cancel(), "failed");
  await assert.rejects(client.turn("0".repeat(32)).info(), NotFound);
});

test("people and callers decide about tool calls, once", async () => {
  const id = newSession();
  const turn = await client.submit(id, "go tool:sign tool:look", { agent, caller_tools: [{ name: "look", parameters: { type: "object" } }] });
  const decided = [];
  for await (const event of turn.events()) {
    if (event.type !== "turn_suspended") continue;
    const [call] = event.calls;
    decided.push(call.name);
    assert.ok((await client.waiting({ limit: 1000 })).some((one) => one.turn_id === turn.id));
    if (call.kind === "tool") await turn.toolResult(call.call_id, { title: "A page" }, { by: "browser" });
    else await turn.approve(call.call_id, { by: "ada" });
    await assert.rejects(turn.reject(call.call_id, { by: "bob" }), (error) => error instanceof AlreadyDecided || error.code === "not_suspended");
  }
  assert.deepEqual(decided, ["sign", "look"]);
  assert.equal((await turn.result()).tool_calls.length, 2);
  await turn.feedback(1, { note: "Right." });
  const { score, note } = /** @type {any} */ ((await turn.info()).feedback);
  assert.deepEqual([score, note], [1, "Right."]);
  const { turns } = await client.call("list_feedback", { limit: 100 });
  assert.ok(turns.some((/** @type {any} */ one) => one.turn_id === turn.id));
});

test("a wrong key, a wrong address and nothing at all are errors of their own", async () => {
  const wrong = new Client(stand.gateway, { key: "antk_wrong", patience: 1 });
  await assert.rejects(wrong.submit(newSession(), "Hello"), (error) => error instanceof Unauthorized && error.status === 401);
  await assert.rejects(wrong.session(newSession()).events({ after: 0 }).next(), Unauthorized);
  await assert.rejects(client.request("GET", "/nowhere"), NotFound);
  await assert.rejects(client.submit(newSession(), "Hello", { colour: "blue" }), (error) => error instanceof UsageError && /colour/.test(error.message));
  const nobody = new Client("http://127.0.0.1:1", { patience: 0.2 });
  await assert.rejects(nobody.session("s").snapshot(), Unavailable);
  await assert.rejects(nobody.turn("t").events().next(), Unavailable);
});

test("a session that was deleted and begun anew is a gap", async () => {
  const id = newSession();
  const turn = await client.submit(id, "one words:20", { agent });
  const last = (await all(turn.events())).at(-1).seq;
  const coming = assert.rejects(client.session(id).events({ after: last }).next(), (error) => error instanceof StreamGap && error.code === "stream_gap");
  assert.equal(await client.session(id).delete(), true);
  assert.equal(await client.session(id).delete(), false);
  await (await client.submit(id, "anew", { agent })).result();
  await coming;
  await assert.rejects(client.session(id).events({ after: last }).next(), StreamGap);
});

test("a reader sees nothing of a later session with the same id", () =>
  seesNothingOfALaterSession(stand, client, {
    submit: (id, text, options) => client.submit(id, text, { agent, ...options }),
    events: (id, options) => client.session(id).events(options),
  }));

test("a gateway that stops ends its streams at a cursor, and the next one goes on", slow, async () => {
  const id = newSession();
  const turn = await client.submit(id, `go gate:${id}`, { agent });
  const stream = turn.events();
  await stand.ask("waits", { gate: id });
  const first = (await stream.next()).value;
  const reading = all(stream);
  await stand.ask("stop_gateway");
  await stand.ask("open", { gate: id });
  await stand.ask("start_gateway");
  const events = [first, ...(await reading)];
  dense(events);
  assert.equal(textIn(events), (await turn.result()).text);
});

test("a key may be a function that gives a fresh one", async () => {
  let asked = 0;
  const fresh = new Client(stand.gateway, { key: async () => ((asked += 1), stand.key) });
  await fresh.session(newSession()).snapshot();
  assert.equal(asked, 1);
});
