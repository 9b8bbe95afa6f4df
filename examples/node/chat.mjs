// A conversation in the terminal: node chat.mjs SESSION. A line is a question; Ctrl-C stops the answer, and Ctrl-D ends.
import { createInterface } from "node:readline/promises";
import { Client, textOf } from "antiphon";

const { ANTIPHON_GATEWAY = "http://localhost:8700", ANTIPHON_KEY, ANTIPHON_AGENT = "assistant" } = process.env;
const client = new Client(ANTIPHON_GATEWAY, { key: ANTIPHON_KEY });
const session = client.session(process.argv[2] ?? "terminal");

const { messages, pending } = await session.snapshot({ last: 10 });
messages.forEach(say);
for (const { turn_id, input = [] } of pending) {
  input.forEach(say);
  await show(client.turn(turn_id)); // an answer that is being written
}

const terminal = createInterface({ input: process.stdin });
process.on("SIGINT", () => session.cancel());
for await (const line of terminal) {
  if (line.trim()) await show(await session.submit(line, { agent: ANTIPHON_AGENT }));
}

function say(message) {
  console.log(`${message.role}: ${textOf(message)}`);
}

async function show(turn) {
  for await (const event of turn.events()) {
    if (event.type === "text_delta") process.stdout.write(event.text);
    else if (event.type === "turn_retrying") process.stdout.write("\n(once more) ");
    else if (event.type === "turn_failed") process.stdout.write(`\nIt failed: ${event.message}`);
    else if (event.type === "turn_cancelled") process.stdout.write(" (stopped)");
  }
  process.stdout.write("\n");
}
