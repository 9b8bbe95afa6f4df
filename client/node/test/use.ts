// A program that uses the package, for the type checker alone: what is marked must be an error.

import { Redis as Ioredis } from "ioredis";
import { createClient } from "redis";
import { Client, StreamGap, TurnFailed, type EventOf, type Message, type SessionEvent, type SubmitOptions } from "antiphon";
import { RedisClient, type JobOptions } from "antiphon/redis";

const client = new Client("https://ai.example.com", { key: async () => "antk_…", patience: 5 });

export async function ask(text: string): Promise<string> {
  const options: SubmitOptions = { agent: "assistant", key: "first", metadata: { from: "web" }, if_busy: "reject" };
  const turn = await client.submit("user-123", text, options);
  for await (const event of turn.events({ signal: AbortSignal.timeout(1000) })) show(event);
  const response = await turn.result({ timeout: 30 });
  const tokens: number = response.usage.input_tokens;
  await turn.approve("call_1", { by: "ada" });
  return `${response.text} ${tokens}`;
}

function show(event: SessionEvent): string {
  switch (event.type) {
    case "text_delta":
      return event.text;
    case "tool_call":
      return `${event.name} ${JSON.stringify(event.arguments)}`;
    case "turn_suspended":
      return event.calls.map((call) => call.call_id).join();
    case "turn_finished":
      return event.response?.text ?? event.steered_into;
    case "unknown":
      return JSON.stringify(event.fields);
    case "turn_started":
      // @ts-expect-error a started turn has no text
      return event.text;
    // @ts-expect-error no event has this type
    case "turn_began":
      return "";
    default:
      return event.type;
  }
}

export async function follow(cursor: number): Promise<void> {
  const session = client.session("user-123");
  const events = session.events({ after: cursor, types: ["text_delta"] });
  try {
    for await (const event of events) console.log(event.seq, events.cursor);
  } catch (error) {
    if (error instanceof StreamGap) await follow((await session.snapshot()).cursor);
    else if (error instanceof TurnFailed) console.log(error.code, error.retryAfter);
    else throw error;
  }
}

export async function ends(kept?: string): Promise<string | undefined> {
  const events = client.events({ after: kept, types: ["turn_failed"] });
  for await (const event of events) if (event.type === "turn_failed") return `${event.session_id} ${event.code}`;
  // @ts-expect-error the place of many sessions is a text
  client.events({ sessions: ["user-123"], after: 7 });
  return events.cursor;
}

export async function straight(): Promise<void> {
  const options: JobOptions = { agent: { provider: "openai", model: "gpt-4o" }, key: "k", queue: "slow" };
  for (const redis of [await createClient().connect(), new Ioredis()]) {
    const turn = await new RedisClient(redis, { prefix: "ant" }).submit("user-123", "Hello", options);
    const done: EventOf<"turn_finished">[] = [];
    for await (const event of turn.events()) if (event.type === "turn_finished") done.push(event);
    const status: string = await turn.status();
    console.log(status, done);
  }
  await new RedisClient(new Ioredis()).submit("user-123", "Hello", { delay: 5, if_busy: "reject", tenant: "acme" });
  // @ts-expect-error a failed turn is requeued, and not submitted again
  await new RedisClient(new Ioredis()).submit("user-123", "Hello", { retry_failed: true });
  // @ts-expect-error the agent is a name or an object with provider and model
  await client.submit("user-123", "Hello", { agent: { provider: "openai" } });
}

export async function call(): Promise<number> {
  // @ts-expect-error a fact has a text
  await client.call("add_fact", { tenant: "acme" });
  await client.call("rewind_session", { session: "user-123", to: "m1" });
  return (await client.call("list_sessions", { limit: 5 })).sessions.length;
}

export const roles = (messages: Message[]): string[] => messages.map(({ role }) => role);
