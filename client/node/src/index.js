// Sessions of turns over a gateway's HTTP interface, in Node and in browsers.

export { Client, Session, Turn } from "./client.js";
export { EventStream } from "./event_stream.js";
export * from "./errors.js";
export { decodeEvent, isTerminal, textOf } from "./values.js";
/** @typedef {import("./http.js").ClientOptions} ClientOptions */
/** @typedef {import("./client.js").Follow} Follow */
/** @typedef {import("./client.js").FollowMany} FollowMany */
/** @typedef {import("./client.js").Wait} Wait */
/** @typedef {import("./types.js").Json} Json */
/** @typedef {import("./types.js").JsonObject} JsonObject */
/** @typedef {import("./types.js").Status} Status */
/** @typedef {import("./types.js").Role} Role */
/** @typedef {import("./types.js").Keep} Keep */
/** @typedef {import("./types.js").StopReason} StopReason */
/** @typedef {import("./types.js").TextPart} TextPart */
/** @typedef {import("./types.js").RefusalPart} RefusalPart */
/** @typedef {import("./types.js").ReasoningPart} ReasoningPart */
/** @typedef {import("./types.js").ToolCallPart} ToolCallPart */
/** @typedef {import("./types.js").ToolResultPart} ToolResultPart */
/** @typedef {import("./types.js").ImagePart} ImagePart */
/** @typedef {import("./types.js").FilePart} FilePart */
/** @typedef {import("./types.js").ItemPart} ItemPart */
/** @typedef {import("./types.js").MediaPart} MediaPart */
/** @typedef {import("./types.js").Part} Part */
/** @typedef {import("./types.js").Message} Message */
/** @typedef {import("./types.js").Usage} Usage */
/** @typedef {import("./types.js").ToolOutcome} ToolOutcome */
/** @typedef {import("./types.js").Response} Response */
/** @typedef {import("./types.js").OpenCall} OpenCall */
/** @typedef {import("./types.js").Decision} Decision */
/** @typedef {import("./types.js").ServiceAnswer} ServiceAnswer */
/** @typedef {import("./types.js").EventBase} EventBase */
/** @typedef {import("./types.js").EventFields} EventFields */
/** @typedef {import("./types.js").EventType} EventType */
/** @typedef {import("./types.js").KnownEvent} KnownEvent */
/** @typedef {import("./types.js").UnknownEvent} UnknownEvent */
/** @typedef {import("./types.js").SessionEvent} SessionEvent */
/** @typedef {import("./types.js").AgentSpec} AgentSpec */
/** @typedef {import("./types.js").CallerTool} CallerTool */
/** @typedef {import("./types.js").TurnOptions} TurnOptions */
/** @typedef {import("./types.js").SubmitOptions} SubmitOptions */
/** @typedef {import("./types.js").Operations} Operations */
/** @typedef {import("./types.js").Input} Input */
/** @typedef {import("./types.js").TurnInfo} TurnInfo */
/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").HistoryPage} HistoryPage */
/** @typedef {import("./types.js").HistoryQuery} HistoryQuery */
/** @template {import("./types.js").EventType} T @typedef {import("./types.js").EventOf<T>} EventOf */
