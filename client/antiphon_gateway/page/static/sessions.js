/** The list of sessions: what runs, what waits for a decision, what has failed; searched, and read in pages. */

import { get } from "./reading/api.js";
import { arrange, h, press, say, show } from "./showing/dom.js";
import { ago, count, many, statusWord } from "./showing/format.js";

const PAGE = 50;
const MOST_READ_AGAIN = 200; // of the list, at each look
const FILTERS = [["all", "All"], ["running", "Running"], ["approval", "To decide"], ["failed", "Failed"]];
const byId = (id) => document.getElementById(id);

export class SessionList {
  #rows = new Map(); // by id, the most recently used one first
  #waiting = new Set();
  #cursor = null;
  #filter = "all";
  #open = null;
  #read = false;

  /** `ondescribe(row)` gets the row of the session that is open, whenever it is read. */
  constructor(ondescribe) {
    this.ondescribe = ondescribe;
    this.search = byId("search");
    this.search.addEventListener("input", () => this.draw());
    this.search.addEventListener("keydown", (event) => this.#typed(event));
    byId("list").addEventListener("keydown", (event) => this.#moved(event));
    byId("more").addEventListener("click", () => press(byId("more"), () => this.#readMore()));
    this.filters = FILTERS.map(([name, word]) => this.#filterButton(name, word));
    byId("filters").append(...this.filters.map((one) => one.node));
  }

  /** Read the sessions used last, and which of them wait for a decision. Throws `AntiphonError`. */
  async refresh() {
    const limit = Math.min(MOST_READ_AGAIN, Math.max(PAGE, this.#rows.size));
    const [page, waiting] = await Promise.all([get("/sessions", { limit }), get("/waiting", { limit: 200 })]);
    this.#waiting = new Set(waiting.turns.map((turn) => turn.session_id));
    const read = new Map(page.sessions.map((row) => [row.session_id, row]));
    const oldest = page.cursor === null ? Infinity : Math.min(...page.sessions.map((row) => row.updated));
    const older = [...this.#rows].filter(([id, row]) => !read.has(id) && row.updated <= oldest && page.cursor !== null);
    this.#rows = new Map([...read, ...older]);
    if (!older.length) this.#cursor = page.cursor;
    this.#read = true;
    this.draw();
    return waiting.turns;
  }

  /** Mark the session that is shown. */
  open(id) {
    this.#open = id;
    this.draw();
  }

  /** How many sessions of those that were read run, wait for a decision, or have failed last. */
  counts() {
    const found = { all: this.#rows.size, running: 0, approval: 0, failed: 0 };
    for (const row of this.#rows.values()) {
      const state = this.#stateOf(row);
      if (state in found) found[state] += 1;
    }
    return found;
  }

  /** The names of the agents of these sessions. */
  agents = () => [...new Set([...this.#rows.values()].map((row) => row.agent).filter(Boolean))].sort();

  draw() {
    const counts = this.counts();
    for (const one of this.filters) one.update(counts[one.name], this.#filter === one.name);
    const shown = this.#shown();
    arrange(byId("list"), shown, (row) => row.session_id, () => new Row((row) => this.#stateOf(row)));
    for (const view of byId("list").views.values()) view.mark(this.#open);
    show(byId("more"), this.#cursor !== null);
    const text = this.search.value.trim();
    const note = byId("list-note");
    show(note, this.#read && shown.length === 0);
    say(note, text ? `None of the sessions read so far has “${text}”. Enter opens the session of this id.` : this.#filter === "all" ? "There are no sessions yet." : "None of these.");
    const open = this.#rows.get(this.#open);
    if (open) this.ondescribe(open);
  }

  #shown() {
    const text = this.search.value.trim().toLowerCase();
    const fits = (row) => [row.session_id, titleOf(row), row.agent, row.tenant].some((one) => one?.toLowerCase().includes(text));
    const shown = [...this.#rows.values()].filter((row) => (this.#filter === "all" || this.#stateOf(row) === this.#filter) && (!text || fits(row)));
    return shown.sort((one, other) => other.updated - one.updated);
  }

  #stateOf = (row) => (this.#waiting.has(row.session_id) ? "approval" : row.closed && row.status === "done" ? "closed" : row.status);

  async #readMore() {
    const page = await get("/sessions", { limit: PAGE, cursor: this.#cursor });
    for (const row of page.sessions) if (!this.#rows.has(row.session_id)) this.#rows.set(row.session_id, row);
    this.#cursor = page.cursor;
    this.draw();
  }

  #filterButton(name, word) {
    const number = h("b", {});
    const node = h("button", { type: "button", class: "chip", "data-state": name, onclick: () => { this.#filter = name; this.draw(); } }, word, " ", number);
    return { name, node, update: (found, on) => { say(number, count(found)); node.setAttribute("aria-pressed", on); } };
  }

  #typed(event) {
    if (event.key === "ArrowDown") return this.#focus(0, event);
    const text = this.search.value.trim();
    if (event.key !== "Enter" || !text || event.isComposing) return undefined;
    const [first] = this.#shown();
    const id = this.#rows.has(text) || !first ? text : first.session_id;
    location.hash = `#/sessions/${encodeURIComponent(id)}`;
    return undefined;
  }

  /** The arrow keys move through the list. */
  #moved(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const links = [...byId("list").querySelectorAll("a")];
    const place = links.indexOf(document.activeElement);
    if (event.key === "Home") this.#focus(0, event);
    else if (event.key === "End") this.#focus(links.length - 1, event);
    else if (step && place + step < 0) this.search.focus();
    else if (step) this.#focus(place + step, event);
  }

  #focus(place, event) {
    const link = byId("list").querySelectorAll("a")[place];
    if (!link) return;
    event.preventDefault();
    link.focus();
  }
}

const titleOf = (row) => (typeof row.metadata?.title === "string" ? row.metadata.title : "");

class Row {
  constructor(stateOf) {
    this.stateOf = stateOf;
    this.name = h("span", { class: "name" });
    this.state = h("span", { class: "state" });
    this.meta = h("span", { class: "meta" });
    this.link = h("a", {}, h("span", { class: "dot" }), this.name, this.state, this.meta);
    this.node = h("li", {}, this.link);
  }

  update(row) {
    this.id = row.session_id;
    const state = this.stateOf(row);
    this.node.dataset.state = state;
    this.link.href = `#/sessions/${encodeURIComponent(row.session_id)}`;
    say(this.name, titleOf(row) || row.session_id);
    say(this.state, state === "approval" ? "To decide" : state === "done" ? "" : statusWord(state));
    say(this.meta, [row.agent, many(row.messages, "message"), row.turns > 1 && `${count(row.turns)} turns open`, ago(row.updated)].filter(Boolean).join(" · "));
  }

  mark(open) {
    if (this.id === open) this.link.setAttribute("aria-current", "page");
    else this.link.removeAttribute("aria-current");
  }
}
