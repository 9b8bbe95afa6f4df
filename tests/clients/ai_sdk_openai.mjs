// `@ai-sdk/openai` as it is by default: earlier items are only named, by item references.
import { createRequire } from "node:module";
import { join } from "node:path";

const [folder, url, what] = process.argv.slice(2);
const require = createRequire(join(folder, "x.js"));
const { generateText, streamText, tool, jsonSchema, stepCountIs } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const bodies = [];
const openai = createOpenAI({
  baseURL: `${url}/v1`, apiKey: "none",
  fetch: (address, init) => { bodies.push(JSON.parse(init.body)); return fetch(address, init); },
});
const say = (value) => console.log(JSON.stringify(value));
const references = () => bodies.at(-1).input.filter((item) => item.type === "item_reference").length;
const model = openai.responses(what === "chat" ? "stage/stage-1" : "scripted/any");
const look = tool({ inputSchema: jsonSchema({ type: "object", properties: {} }), execute: () => "a tree" });

const programs = {
  // A chat of three questions; each request has the whole conversation.
  async chat() {
    const messages = [];
    const texts = [];
    for (const content of ["one", "two", "three"]) {
      messages.push({ role: "user", content });
      const stream = streamText({ model, messages, maxRetries: 0 });
      texts.push(await stream.text);
      messages.push(...(await stream.response).messages);
    }
    say({ texts, references: references() });
  },
  // The loop of tools runs in the SDK. With `store: false` reasoning travels in encrypted form.
  async tools(providerOptions = {}) {
    const asks = { model, prompt: "Look", tools: { look }, stopWhen: stepCountIs(4), maxRetries: 0 };
    const found = await generateText({ ...asks, providerOptions: { openai: providerOptions } });
    say({ text: found.text, steps: found.steps.length, references: references(), bodies: bodies.length,
      warnings: found.warnings, input: bodies.at(-1).input.map((item) => item.type ?? item.role) });
  },
  async stateless() {
    await programs.tools({ store: false, include: ["reasoning.encrypted_content"] });
  },
  async streamed() {
    const found = streamText({ model, prompt: "Look", tools: { look }, stopWhen: stepCountIs(4), maxRetries: 0 });
    say({ text: await found.text, steps: (await found.steps).length, bodies: bodies.length });
  },
};

await programs[what]();
process.exit(0);
