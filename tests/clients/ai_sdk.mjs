// A chat of the AI SDK, as useChat has one without React: sends, resumes, approves and runs tools of the page.
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [folder, url, what] = process.argv.slice(2);
const ai = createRequire(join(folder, "x.js"))("ai");
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (value) => console.log(JSON.stringify(value));

class State {
  status = "ready";
  error = undefined;
  constructor(messages) { this.messages = messages; }
  pushMessage = (message) => { this.messages = this.messages.concat(message); };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (at, message) => { this.messages = this.messages.with(at, message); };
  snapshot = (value) => structuredClone(value);
}

class Chat extends ai.AbstractChat {
  constructor({ messages = [], ...init }) { super({ ...init, state: new State(messages) }); }
}

const transport = (base = url, body = {}) =>
  new ai.DefaultChatTransport({ api: `${base}/chat`, body: { agent: "stage", ...body } });
const parts = (chat) => chat.messages.at(-1).parts.map(({ type, state, text, output, toolCallId, approval }) =>
  ({ type, state, text, output, toolCallId, approved: approval?.approved }));
const text = (chat) => chat.messages.at(-1).parts.filter((p) => p.type === "text").map((p) => p.text).join("");
const settled = async (chat, state) => {
  while (!(chat.status === "ready" && chat.messages.at(-1).parts.some(state))) {
    if (chat.error) throw chat.error;
    await new Promise((done) => setTimeout(done, 5));
  }
};

const programs = {
  // The whole answer comes to who sent the question, and to a page that was loaded meanwhile, from another gateway.
  async resume() {
    const chat = new Chat({ id: "s", transport: transport() });
    const sent = chat.sendMessage({ text: "go gate:g" });
    await lines.next();
    const other = new Chat({ id: "s", transport: transport(process.argv[5]), messages: chat.messages });
    const resumed = other.resumeStream();
    while (other.messages.at(-1).role !== "assistant") await new Promise((done) => setTimeout(done, 5));
    say("resumed");
    await Promise.all([sent, resumed]);
    say({ sent: text(chat), resumed: text(other), idle: await transport().reconnectToStream({ chatId: "s" }) });
  },
  // A model call that begins again takes back what it had said.
  async retry() {
    const chat = new Chat({ id: "r", transport: transport() });
    await chat.sendMessage({ text: "go fail:broken*1 once" });
    say({ text: text(chat), parts: parts(chat), error: chat.error?.message });
  },
  // A tool waits for the user, who approves or denies it.
  async approve() {
    const found = {};
    for (const approved of [true, false]) {
      const id = approved ? "yes" : "no";
      const chat = new Chat({
        id, transport: transport(), sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithApprovalResponses,
      });
      await chat.sendMessage({ text: `go tool:guarded ${id}` });
      const asked = parts(chat);
      const reloaded = new Chat({ id, transport: transport(), messages: chat.messages.slice(0, 1) });
      await reloaded.resumeStream();
      const approval = chat.messages.at(-1).parts.find((part) => part.state === "approval-requested").approval;
      await chat.addToolApprovalResponse({ id: approval.id, approved, reason: approved ? undefined : "Too much." });
      await settled(chat, (part) => part.type === "text");
      found[id] = { asked, reloaded: parts(reloaded), done: parts(chat), messages: chat.messages.length };
    }
    say(found);
  },
  // The gateway is killed in mid-answer: another one brings the whole of it.
  async survive() {
    let chat = new Chat({ id: "k", transport: transport() });
    const sent = chat.sendMessage({ text: "go gate:g gate:h" });
    while (chat.lastMessage?.role !== "assistant") await new Promise((done) => setTimeout(done, 5));
    say("begun");
    await sent;
    say("lost");
    do {
      chat = new Chat({ id: "k", transport: transport(process.argv[5]), messages: chat.messages });
      await chat.resumeStream();
    } while (chat.status !== "ready");
    say(chat.messages.flatMap((m) => m.parts.filter((p) => m.role === "assistant" && p.type === "text").map((p) => p.text)));
  },
  // A tool of the page: the turn waits for its result.
  async tools() {
    const caller_tools = [{ name: "look", description: "Look at the page." }];
    const chat = new Chat({
      id: "t", transport: transport(url, { caller_tools }),
      sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall: ({ toolCall }) => {
        chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { title: "A tree" } });
      },
    });
    await chat.sendMessage({ text: "go tool:look" });
    await settled(chat, (part) => part.type === "text");
    say({ done: parts(chat), messages: chat.messages.length });
  },
};

await programs[what]();
