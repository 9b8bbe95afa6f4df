/** The view of the session that is open: its history and its events, and what its user and its operator may do. */

import { Follower, get, path, post } from "../reading/api.js";
import { Conversation, begun, ended } from "../reading/conversation.js";
import { announce, arrange, byId, notify, onFrame, onPress, say, show } from "../showing/dom.js";
import { line, many, statusWord, titleOf } from "../showing/format.js";
import { Lag } from "../reading/lag.js";
import { TurnView } from "../showing/turn.js";

const PAGE = 60; // messages
const MOST_TURNS = 240; // on the page while it follows
const NEAR_PX = 48;

/** Shows one session at a time. `onchange` is called when a turn begins or ends, `onbusy` with whether there is one. */
export class SessionView {
  id = null;
  #conversation = new Conversation();
  #facts = {};
  #follower = null;
  #generation = 0;
  #pinned = true;
  #complete = true;
  #lag = new Lag();
  #state = "";
  #draw = onFrame(() => this.#drawNow());

  constructor(onchange, onbusy) {
    Object.assign(this, { onchange, onbusy });
    this.scroller = byId("scroller");
    this.actions = {
      requeue: (turn) => post(path`/turns/${turn.id}/requeue`),
      cancel: (turn) => post(path`/turns/${turn.id}/cancel`, { reason: "cancelled by an operator" }),
      approve: (turn, call, given) => this.#decide(turn, call, "approve", given ? { arguments: given } : {}),
      reject: (turn, call, reason) => this.#decide(turn, call, "reject", reason ? { reason } : {}),
      answer: (turn, call, text, wrong) => this.#decide(turn, call, "result", { result: valueOf(text), is_error: wrong }),
    };
    this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    byId("latest").addEventListener("click", () => this.toEnd());
    onPress(byId("earlier"), () => this.#readEarlier());
    onPress(byId("stop"), () => this.stop());
    new IntersectionObserver(([seen]) => seen.isIntersecting && !this.#pinned && byId("earlier").click(), { root: this.scroller, rootMargin: "400px" }).observe(byId("earlier"));
    new ResizeObserver(() => this.#pinned && this.#toEndNow()).observe(this.scroller);
  }

  /** Show another session, or none. */
  open(id) {
    if (id === this.id) return;
    this.close();
    this.id = id;
    byId("session-name").textContent = id;
    byId("session-name").title = id;
    this.#load();
  }

  close() {
    this.#generation += 1;
    this.#follower?.stop();
    this.#follower = null;
    this.id = null;
    this.#conversation = new Conversation();
    this.#facts = {};
    this.#pinned = true;
    this.#lag = new Lag();
    arrange(byId("turns"), [], String, String);
  }

  /** Take what the list of sessions knows of this one. */
  describe(facts) {
    if (facts.session_id !== this.id) return;
    this.#facts = facts;
    this.#draw();
  }

  /** Stop the turn that has begun: it runs or is suspended. Its output so far stays. */
  async stop() {
    const turn = this.#conversation.turns.find(begun);
    if (turn) await post(path`/turns/${turn.id}/cancel`, { reason: "stopped by an operator", keep: "partial" });
    else notify("No turn runs.", { wrong: false });
  }

  async #load() {
    const generation = (this.#generation += 1);
    const stale = () => generation !== this.#generation;
    this.#follower?.stop();
    this.#connected("connecting");
    try {
      const where = path`/sessions/${this.id}`;
      const snapshot = await get(`${where}/snapshot`, { last: 0 });
      const page = await get(`${where}/messages`, { start: -PAGE, failed: true }).catch(noSession);
      if (stale()) return;
      this.#show(snapshot, page);
      this.#follow(snapshot.cursor, generation);
      const { turns } = await get(`${where}/turns`, { limit: 30 });
      if (!stale()) for (const info of turns) this.#conversation.describe(info);
      this.#draw();
    } catch (problem) {
      if (stale()) return;
      this.#connected("lost");
      if (!problem.retryable) notify(problem.message);
      else setTimeout(() => stale() || this.#load(), 1500);
    }
  }

  #show(snapshot, page) {
    this.#conversation = new Conversation();
    this.#conversation.prepend(page.messages, Math.max(0, page.length - PAGE));
    this.#conversation.addPending(snapshot.pending);
    this.#conversation.cursor = snapshot.cursor;
    this.#complete = this.#conversation.first === 0;
    this.#drawNow();
  }

  #follow(after, generation) {
    const current = (take) => (value) => generation === this.#generation && take(value);
    this.#follower = new Follower(this.id, {
      after,
      onevent: current((event) => this.#take(event)),
      onstate: current((state) => this.#connected(state)),
      onend: current((why) => this.#ended(why)),
    });
  }

  #take(event) {
    this.#lag.take(event.at);
    const before = this.#conversation.find(event.turn_id ?? "")?.status;
    const reload = this.#conversation.take(event) === "reload";
    const turn = this.#conversation.find(event.turn_id ?? "");
    if (turn && turn.status !== before) this.#changed(turn);
    if (reload) this.#load();
    this.#draw();
  }

  #changed(turn) {
    this.onchange();
    if (turn.status === "running") announce("The answer begins.");
    else if (turn.status === "finished") announce(`The answer is complete. ${turn.pieces.at(-1)?.text?.slice(0, 400) ?? ""}`);
    else if (turn.status === "suspended") announce("The turn is suspended: a tool call waits for a decision.");
    else announce(`The turn: ${statusWord(turn.status)}. ${turn.error?.text ?? ""}`);
  }

  #ended(why) {
    this.#connected("lost");
    if (why?.code === "stream_gap") setTimeout(() => this.id && this.#load(), 500);
    else if (why?.status) notify(why.message);
    else setTimeout(() => this.id && this.#load(), 1000);
  }

  #connected(state) {
    this.#state = state;
    this.#lag.restart();
    this.#draw();
  }

  async #readEarlier() {
    const { first } = this.#conversation;
    const generation = this.#generation;
    if (first === 0) return;
    const start = Math.max(0, first - PAGE);
    const { messages } = await get(path`/sessions/${this.id}/messages`, { start, stop: first, failed: true });
    if (generation !== this.#generation) return;
    const anchor = [...byId("turns").children].find((one) => one.getBoundingClientRect().bottom > this.scroller.getBoundingClientRect().top);
    const before = anchor?.getBoundingClientRect().top;
    this.scroller.style.overflowAnchor = "none";
    this.#conversation.prepend(messages, start);
    this.#complete = start === 0;
    this.#drawNow();
    if (anchor) this.scroller.scrollTop += anchor.getBoundingClientRect().top - before;
    requestAnimationFrame(() => { this.scroller.style.overflowAnchor = ""; });
  }

  async #decide(turn, call, kind, body) {
    await post(path`/turns/${turn.id}/calls/${call.call_id}/${kind}`, body);
    this.#conversation.decided(turn, { call_id: call.call_id, kind, here: true, reason: body.reason, arguments: body.arguments, at: Date.now() });
    this.#draw();
    byId("text").focus({ preventScroll: true });
  }

  #drawNow() {
    if (this.id === null) return;
    const conversation = this.#conversation;
    if (this.#pinned && conversation.turns.length > MOST_TURNS) {
      conversation.trim(MOST_TURNS / 2);
      this.#complete = conversation.first === 0;
    }
    arrange(byId("turns"), conversation.turns, (turn) => turn.key, (turn) => new TurnView(turn, this.actions));
    const open = conversation.turns.filter((turn) => !ended(turn));
    show(byId("earlier"), !this.#complete);
    show(byId("empty"), conversation.turns.length === 0 && this.#state === "live");
    show(byId("stop"), open.some(begun));
    this.onbusy(open.length > 0);
    this.#drawHead();
    if (this.#pinned) this.#toEndNow();
    show(byId("latest"), !this.#pinned);
  }

  #drawHead() {
    const { agent, tenant, messages } = this.#facts;
    const found = [titleOf(this.#facts), agent && `agent ${agent}`, tenant && `tenant ${tenant}`, messages && many(messages, "message"), this.#lag.text()];
    say(byId("session-facts"), line(found));
    const connection = byId("connection");
    say(connection, { live: "Live", connecting: "Connecting", lost: "Cut off: trying again" }[this.#state] ?? "");
    connection.dataset.state = this.#state;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.#pinned = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    show(byId("latest"), !this.#pinned);
  }

  #toEndNow() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  toEnd() {
    this.#pinned = true;
    this.#toEndNow();
    this.#draw();
    byId("text").focus({ preventScroll: true });
  }
}

/** A result as it was typed: the value if it is JSON, otherwise the text. */
function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function noSession(problem) {
  if (problem.status === 404) return { messages: [], length: 0 };
  throw problem;
}
