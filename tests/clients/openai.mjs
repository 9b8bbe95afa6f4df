// OpenAI's own client: every operation of /v1 once, and a stream that is left and taken up at another gateway.
import { createRequire } from "node:module";
import { join } from "node:path";

const [folder, url, what, other] = process.argv.slice(2);
const { OpenAI } = createRequire(join(folder, "x.js"))("openai");
const open = (base) => new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });
const client = open(url);
const model = "stage/stage-1";
const say = (value) => console.log(JSON.stringify(value));
const all = async (stream) => { const found = []; for await (const one of stream) found.push(one); return found; };

const programs = {
  async operations() {
    const first = await client.responses.create({ model, input: "one" });
    const second = await client.responses.create({ model, input: "two", previous_response_id: first.id });
    const input = await client.responses.inputItems.list(second.id);
    const short = await client.responses.compact({ model, previous_response_id: second.id });
    const conversation = await client.conversations.create({ items: [{ role: "user", content: "Hi" }] });
    const third = await client.responses.create({ model, input: "three", conversation: conversation.id });
    const items = await all(client.conversations.items.list(conversation.id, { order: "asc" }));
    const changed = await client.conversations.update(conversation.id, { metadata: { a: "b" } });
    const gone = await client.conversations.delete(conversation.id);
    await client.responses.delete(first.id);
    const missing = await client.responses.retrieve(first.id).catch((error) => error.status);
    const messages = [{ role: "user", content: "Hello" }];
    const chat = await client.chat.completions.create({ model, messages });
    const stream = client.chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
    const streamed = await stream.finalChatCompletion();
    say({
      texts: [second.output_text, third.output_text, chat.choices[0].message.content,
        streamed.choices[0].message.content],
      usage: streamed.usage.total_tokens, input: input.data[0].content[0].text, short: short.output.at(-1).type,
      items: items.map((one) => one.role), ids: [items.at(-1).id, third.output[0].id], metadata: changed.metadata,
      gone: gone.deleted, missing, models: (await all(await client.models.list())).map((one) => one.id),
      model: (await client.models.retrieve(model)).id,
    });
  },
  async resume() {
    const stream = await client.responses.create({ model, input: "go gate:g", stream: true });
    const seen = [];
    for await (const event of stream) {
      seen.push(event);
      if (event.type === "response.output_text.delta") break; // this leaves the stream
    }
    say("left");
    const rest = await open(other).responses.retrieve(seen[0].response.id, {
      stream: true, starting_after: seen.at(-1).sequence_number,
    });
    seen.push(...await all(rest));
    const text = seen.filter((one) => one.type === "response.output_text.delta").map((one) => one.delta).join("");
    say({ numbers: seen.map((one) => one.sequence_number), text, whole: seen.at(-1).response.output[0].content[0].text });
  },
};

await programs[what]();
process.exit(0);
