// What the protocol and the HTTP interface carry, under the names that they have there.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

export type Status = "queued" | "waiting" | "running" | "retrying" | "suspended" | "finished" | "failed" | "cancelled";
export type Role = "system" | "user" | "assistant" | "tool";
export type Keep = "partial" | "steps" | "nothing";
export type StopReason =
  | "end" | "max_tokens" | "stop_sequence" | "tool_use" | "refusal" | "content_filter" | "limit" | "interrupted";

export interface TextPart { type: "text"; text: string; annotations?: JsonObject[] }
export interface RefusalPart { type: "refusal"; text: string }
export interface ReasoningPart { type: "reasoning"; text?: string; item?: JsonObject | null }
export interface ToolCallPart { type: "tool_call"; call_id: string; name: string; arguments?: JsonObject; raw?: string | null }
export interface ToolResultPart {
  type: "tool_result"; call_id: string; content?: string | MediaPart[]; name?: string; is_error?: boolean;
}
export interface ImagePart { type: "image"; url?: string | null; data?: string | null; media_type?: string | null; detail?: string | null }
export interface FilePart {
  type: "file"; url?: string | null; data?: string | null; file_id?: string | null; media_type?: string | null; name?: string | null;
}
export interface ItemPart { type: "item"; provider: string; item: JsonObject }
export type MediaPart = TextPart | ImagePart | FilePart;
/** A part of a message. A newer release may send types that are not listed: pass them on unchanged. */
export type Part = TextPart | RefusalPart | ReasoningPart | ToolCallPart | ToolResultPart | ImagePart | FilePart | ItemPart;

/** An entry of the history. */
export interface Message {
  role: Role;
  parts: Part[];
  id?: string | null;
  turn_id?: string | null;
  created?: number | null;
  agent?: string | null;
  provider?: string | null;
  model?: string | null;
  interrupted?: boolean;
  status?: Status | null;
  error?: string | null;
  decisions?: Decision[];
}

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  cached_input_tokens: number;
  cache_write_tokens: number;
  reasoning_tokens: number;
  /** In US dollars, where a model has a price. */
  cost: number | null;
  unpriced_tokens: number;
}

export interface ToolOutcome { call_id: string; name: string; arguments: JsonObject; result: string | null; is_error: boolean }

/** What a turn brought: the answer and all that led to it. */
export interface Response {
  text: string;
  output: Json;
  tool_calls: ToolOutcome[];
  messages: Message[];
  usage: Usage;
  stop_reason: StopReason;
  raw_stop_reason: string | null;
  model: string | null;
  turn_id: string;
  session_id: string;
  limit: string | null;
}

/** A tool call that a suspended turn waits for. */
export interface OpenCall {
  call_id: string;
  name: string;
  arguments?: JsonObject;
  /** `approval` if it is absent: a person decides. `tool`: the caller gives the result. */
  kind?: "approval" | "tool";
  seconds?: number | null;
  until?: number | null;
  at_limit?: "reject" | "approve" | "fail";
}

export interface Decision {
  call_id: string;
  kind: "approve" | "reject" | "result";
  at?: number;
  by?: string | null;
  reason?: string | null;
  arguments?: JsonObject | null;
  content?: string | MediaPart[];
  is_error?: boolean;
}

/** What a model service said with its error. */
export interface ServiceAnswer { status?: number | null; request_id?: string | null; retry_after?: number | null }

/** What every event has. */
export interface EventBase {
  /** Dense in a session: 1, 2, 3, … */
  seq: number;
  /** The server's time in milliseconds. */
  at: number;
  session_id: string;
  /** Empty in a change of the session outside a turn. */
  turn_id: string;
  run: number;
  attempt: number;
  step: number;
}

/** The fields of each type of event. All are always there: one that was absent has its default. */
export interface EventFields {
  turn_queued: { position: number; input: Message[]; input_omitted: boolean };
  turn_started: { worker: string };
  text_delta: { text: string };
  reasoning_delta: { text: string };
  refusal_delta: { text: string };
  output_delta: { output: Json };
  tool_call_delta: { call_id: string; name: string; arguments: string };
  tool_call: { call_id: string; name: string; arguments: JsonObject };
  tool_result: { call_id: string; name: string; result: string; is_error: boolean };
  tool_progress: { call_id: string; name: string; text: string; fraction: number | null };
  custom: { call_id: string; name: string; data: Json };
  item: { provider: string; item: JsonObject };
  step_finished: { usage: Partial<Usage>; stop_reason: StopReason; model: string; rejected: string };
  turn_retrying: { reason: string; code: string; retry_at: number; service: ServiceAnswer | null };
  model_changed: { source: string; target: string; code: string };
  turn_suspended: { calls: OpenCall[] };
  turn_resumed: { decisions: Decision[] };
  turn_steered: { steered_id: string; input: Message[]; input_omitted: boolean };
  turn_finished: { response: Response | null; steered_into: string };
  turn_failed: { code: string; message: string; raw: string; service: ServiceAnswer | null };
  turn_cancelled: { reason: string; kept: number; keep: Keep };
  message_added: { message: Message | null };
  history_cleared: {};
  history_rewound: { message_id: string; kept: number };
  variables_changed: { variables: JsonObject };
  session_forked: { fork_id: string };
  session_closed: { reason: string };
}
export type EventType = keyof EventFields;
export type EventOf<T extends EventType> = EventBase & { type: T } & EventFields[T];
export type KnownEvent = { [T in EventType]: EventOf<T> }[EventType];
/** An event of a type that this release does not know; `fields` holds it whole. */
export interface UnknownEvent extends EventBase { type: "unknown"; fields: JsonObject }
/** One published fact about a session. */
export type SessionEvent = KnownEvent | UnknownEvent;

/** An agent that travels with a turn. */
export interface AgentSpec {
  provider: string;
  model: string;
  system?: string;
  tools?: string[];
  params?: JsonObject;
  max_steps?: number;
  [more: string]: unknown;
}

export interface CallerTool {
  name: string;
  description?: string;
  parameters?: JsonObject;
  /** How many seconds a call may wait for its result. */
  timeout?: number;
  at_limit?: "reject" | "fail";
}

/** The options of a turn, by both ways to submit one. Durations are in seconds. */
export interface TurnOptions {
  /** The name of an agent of the workers, or an agent that travels with the turn. */
  agent?: string | AgentSpec;
  /** The same key in the same session is the same turn. Without one, a random key is made. */
  key?: string;
  params?: JsonObject;
  metadata?: JsonObject;
  /** A JSON schema: the answer is structured output. */
  schema?: JsonObject;
  timeout?: number;
  caller_tools?: CallerTool[];
  while_suspended?: "wait" | "continue";
}

/** What the gateway takes beyond that. */
export interface SubmitOptions extends TurnOptions {
  delay?: number;
  if_busy?: "enqueue" | "reject" | "interrupt" | "rollback" | "steer";
  priority?: "high" | "normal" | "low";
  retry_failed?: boolean;
  ttl?: number | null;
  queue?: string;
  tenant?: string;
  signal?: AbortSignal;
}

export type Input = string | Part | readonly (Part | Message | JsonObject)[];

/** A turn at the moment of reading. */
export interface TurnInfo {
  turn_id: string;
  session_id: string;
  status: Status;
  input?: Message[];
  agent?: string | null;
  metadata?: JsonObject;
  key?: string | null;
  created?: number;
  due?: number | null;
  run?: number;
  attempt?: number;
  started?: number | null;
  ended?: number | null;
  code?: string | null;
  error?: string | null;
  usage?: Partial<Usage>;
  messages?: Message[];
  calls?: OpenCall[];
  decisions?: Decision[];
  service?: ServiceAnswer | null;
  steered_into?: string | null;
}

/** A session at one moment: its last messages, its pending turns and the cursor to go on from. */
export interface Snapshot {
  session_id: string;
  messages: Message[];
  cursor: number;
  turn_id: string | null;
  pending: TurnInfo[];
}

export interface HistoryPage { messages: Message[]; length: number }
export interface HistoryQuery { start?: number; stop?: number; pending?: boolean; failed?: boolean }
