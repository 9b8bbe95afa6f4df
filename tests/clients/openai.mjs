// OpenAI's own client: every operation of /v1 once, and a stream that is left and taken up at another gateway.
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [folder, url, what, other] = process.argv.slice(2);
const { OpenAI } = createRequire(join(folder, "x.js"))("openai");
const open = (base) => new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });
const client = open(url);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
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
  // The gateway gets SIGTERM while all of these wait; what is repeated with its key gets the result.
  async drained() {
    const statuses = [];
    const patient = new OpenAI({
      baseURL: `${url}/v1`, apiKey: "none", maxRetries: 6,
      fetch: async (...given) => {
        const response = await fetch(...given);
        statuses.push([response.status, response.headers.get("retry-after")]);
        return response;
      },
    });
    const keyed = (key) => ({ headers: { "Idempotency-Key": key } });
    const input = "go gate:g", messages = [{ role: "user", content: input }], stream = true;
    const gathered = async (from, into) => { try { for await (const one of from) into.push(one); } catch { /* it broke off */ } };
    const events = [], chunks = [];
    const streamed = await client.responses.create({ model, input, stream });
    const chunked = await client.chat.completions.create({ model, messages, stream }, keyed("s"));
    const whole = [
      patient.responses.create({ model, input }, keyed("r")),
      patient.chat.completions.create({ model, messages }, keyed("c")),
    ];
    await Promise.all([gathered(streamed, events), gathered(chunked, chunks)]);
    say({ response: events.at(-1).type === "response.completed", chat: chunks.some((one) => one.choices[0].finish_reason) });
    await lines.next();
    const [made, completion] = await Promise.all(whole);
    await gathered(await client.responses.retrieve(events[0].response.id, {
      stream, starting_after: events.at(-1).sequence_number,
    }), events);
    const again = await all(await client.chat.completions.create({ model, messages, stream }, keyed("s")));
    say({
      statuses, numbers: events.map((one) => one.sequence_number),
      texts: [made.output_text, completion.choices[0].message.content, events.at(-1).response.output[0].content[0].text,
        again.map((one) => one.choices[0].delta.content ?? "").join("")],
    });
  },
};

await programs[what]();
process.exit(0);
