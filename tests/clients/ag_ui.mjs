// AG-UI's own client: HttpAgent, which checks the order of events (verifyEvents) and keeps the messages.
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [folder, url, what, other] = process.argv.slice(2);
const { HttpAgent } = createRequire(join(folder, "x.js"))("@ag-ui/client");
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (value) => console.log(JSON.stringify(value));

// A lost connection rejects a promise inside the client, beside the one of the run.
process.on("unhandledRejection", () => {});

const agentOf = (threadId, base = url) => new HttpAgent({ url: `${base}/ag-ui/stage`, threadId });
const ask = (agent, id, content) => agent.addMessage({ id, role: "user", content });
const run = async (agent, parameters = {}) => {
  const events = [];
  let finished, failed;
  await agent.runAgent(parameters, {
    onEvent: ({ event }) => { events.push(event.type); },
    onRunFinishedEvent: ({ event }) => { finished = event; },
    onRunErrorEvent: ({ event }) => { failed = event; },
  }).catch((error) => { failed ??= { message: error.message }; });
  return { events, outcome: finished?.outcome, usage: finished?.usage, failed, messages: agent.messages };
};

const programs = {
  // The same request, sent again to another gateway in the middle of the answer, brings the whole of it.
  async resume() {
    const first = agentOf("s");
    ask(first, "m1", "go gate:g");
    const sent = run(first);
    await lines.next();
    const second = agentOf("s", other);
    ask(second, "m1", "go gate:g");
    const again = run(second);
    const third = agentOf("s", other); // knows a part of the answer
    third.setMessages(structuredClone(first.messages));
    const partly = run(third);
    say("resumed");
    say(await Promise.all([sent, again, partly]));
  },
  // The gateway is killed in mid-answer: the same request to another one brings the whole of it.
  async survive() {
    let agent = agentOf("k");
    ask(agent, "m1", "go gate:g gate:h");
    const sent = run(agent);
    while (agent.messages.length < 2) await new Promise((done) => setTimeout(done, 5));
    say("begun");
    let found = await sent;
    say("lost");
    while (found.failed) {
      const messages = structuredClone(agent.messages);
      agent = agentOf("k", other);
      agent.setMessages(messages);
      found = await run(agent);
    }
    say(agent.messages.filter(({ role }) => role === "assistant").map(({ content }) => content));
  },
  async retry() {
    const agent = agentOf("r");
    ask(agent, "m1", "go fail:broken*1 once");
    say(await run(agent));
  },
  async fail() {
    const agent = agentOf("f");
    ask(agent, "m1", "go fail:rejected");
    say(await run(agent));
  },
  async stop() {
    const agent = agentOf("c");
    ask(agent, "m1", "go gate:never");
    const stopped = run(agent);
    await lines.next();
    await fetch(`${url}/sessions/c/cancel`, {
      method: "POST", headers: { "content-type": "application/json" }, body: "{}",
    });
    say(await stopped);
  },
  async approve() {
    const found = {};
    for (const approved of [true, false]) {
      const agent = agentOf(approved ? "yes" : "no");
      ask(agent, "m1", `go tool:guarded ${approved}`);
      const asked = await run(agent);
      const resume = asked.outcome.interrupts.map(({ id }) => ({
        interruptId: id, status: "resolved", payload: { approved, reason: approved ? undefined : "Too much." },
      }));
      const done = await run(agent, { resume });
      found[approved] = { asked: { ...asked, messages: null }, done };
    }
    say(found);
  },
  async tools() {
    const agent = agentOf("t");
    ask(agent, "m1", "go tool:look tool:note");
    const tools = [{ name: "look", description: "Look at the page.", parameters: { type: "object", properties: {} } }];
    const asked = await run(agent, { tools });
    const toolCallId = asked.outcome.pendingToolCallIds[0];
    agent.addMessage({ id: "r1", role: "tool", toolCallId, content: "a tree" });
    say({ asked: { ...asked, messages: null }, done: await run(agent, { tools }) });
  },
};

await programs[what]();
