// A2A's own client for JavaScript, with both bindings.
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [folder, url, what, other] = process.argv.slice(2);
const require = createRequire(join(folder, "x.js"));
const { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory } = require("@a2a-js/sdk/client");
const { Role, TaskState } = require("@a2a-js/sdk");
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (value) => console.log(JSON.stringify(value));

const clientOf = (binding, base = url) => {
  const transports = { JSONRPC: new JsonRpcTransportFactory(), "HTTP+JSON": new RestTransportFactory() };
  const factory = new ClientFactory(ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
    transports: [transports[binding]], preferredTransports: [binding],
  }));
  return factory.createFromUrl(`${base}/a2a/stage/.well-known/agent-card.json`, "");
};
const text = (value) => ({ content: { $case: "text", value }, metadata: undefined, filename: "", mediaType: "" });
const message = (value, more = {}) => ({
  tenant: "", metadata: undefined, configuration: undefined,
  message: {
    messageId: crypto.randomUUID(), role: Role.ROLE_USER, parts: [text(value)], contextId: "", taskId: "", metadata: undefined,
    extensions: [], referenceTaskIds: [], ...more,
  },
});
const said = (parts) => parts.map((part) => part.content?.value ?? "").join("");
// What is known of a task from the updates of a stream.
const follow = async (updates, until = () => false) => {
  const found = { id: "", states: [], text: "" };
  for await (const { payload } of updates) {
    const { $case, value } = payload;
    if ($case === "task") {
      found.id = value.id;
      found.text = said(value.artifacts.flatMap((one) => one.parts));
    }
    if ($case === "artifactUpdate") found.text = (value.append ? found.text : "") + said(value.artifact.parts);
    if (value.status) found.states.push(TaskState[value.status.state]);
    if (until(found)) break;
  }
  return found;
};

const programs = {
  // Talk, approve, list and cancel, with each binding.
  async talk() {
    for (const binding of ["JSONRPC", "HTTP+JSON"]) {
      const client = await clientOf(binding);
      const first = await client.sendMessage(message("Hello"));
      const asked = await client.sendMessage(message("tool:guarded", { contextId: first.contextId }));
      const done = await client.sendMessage(message("approve", { taskId: asked.id }));
      const read = await client.getTask({ id: first.id, tenant: "", historyLength: undefined });
      const listed = await client.listTasks({
        tenant: "", contextId: first.contextId, status: 0, pageSize: 10, pageToken: "", historyLength: undefined,
        statusTimestampAfter: undefined, includeArtifacts: true,
      });
      const refused = await client.cancelTask({ id: first.id, tenant: "", metadata: undefined }).catch((error) => error);
      say({
        binding, answer: said(read.artifacts[0].parts), asked: TaskState[asked.status.state], done: TaskState[done.status.state],
        listed: listed.tasks.map((one) => one.id), ids: [asked.id, first.id], refused: refused.name,
      });
    }
  },
  // A stream that is left in the middle is taken up at another gateway.
  async resume() {
    const client = await clientOf("JSONRPC");
    const first = await follow(client.sendMessageStream(message("go gate:g")), (one) => one.text !== "");
    say(first);
    await lines.next();
    const elsewhere = await clientOf("HTTP+JSON", other);
    let resumed = false;
    say(await follow(elsewhere.resubscribeTask({ id: first.id, tenant: "" }), () => {
      if (!resumed) say("resumed");
      resumed = true;
    }));
  },
};
await programs[what]();
process.exit(0);
