/** The list of sessions: what runs, what is suspended, what has failed; searched by the server, and read in pages. */

import { MessageSearch } from "./messages.js";
import { get } from "./reading/api.js";
import { addressOf, arrange, byId, h, notify, onPress, say, show } from "./showing/dom.js";
import { ago, count, line, many, statusWord, titleOf } from "./showing/format.js";

const PAGE = 50;
const MOST_READ_AGAIN = 200; // of the list, at each look
const FILTERS = [["all", "All"], ["running", "Running"], ["suspended", "Suspended"], ["failed", "Failed"]];
const TYPING_MS = 250;
const RARELY_MS = 10_000; // what costs the server more is asked for less often
const PAGES_AT_ONCE = 5; // of a search: each looks at a thousand sessions

export class SessionList {
  #rows = new Map(); // by id, the most recently used one first
  #titles = new Map(); // of all sessions that were read
  #waiting = new Set();
  #counts = { sessions: null, running: null, suspended: null, failed: null, limit: null, searchable: false };
  #counted = 0;
  #cursor = null;
  #filter = "all";
  #text = ""; // that the rows were searched for
  #open = null;
  #read = 0; // when the rows were read
  #asked = 0; // so that a late answer to another question is dropped
  #timer = 0;

  /** `ondescribe(row)` gets the row of the session that is open, whenever it is read. */
  constructor(ondescribe) {
    this.ondescribe = ondescribe;
    this.search = byId("search");
    this.search.addEventListener("input", () => this.#typing());
    this.search.addEventListener("keydown", (event) => this.#typed(event));
    byId("list").addEventListener("keydown", (event) => this.#moved(event));
    onPress(byId("more"), () => this.#readMore());
    this.messages = new MessageSearch((id) => this.#titles.get(id) ?? id);
    byId("hits").addEventListener("keydown", (event) => this.#moved(event));
    this.filters = FILTERS.map(([name, word]) => this.#filterButton(name, word));
    byId("filters").append(...this.filters.map((one) => one.node));
  }

  /** Read the sessions used last, the suspended turns and the counts. Throws `AntiphonError`. */
  async refresh() {
    const [{ turns }] = await Promise.all([get("/waiting", { limit: 200 }), this.#count(), this.#text && Date.now() - this.#read < RARELY_MS ? null : this.#readAgain()]);
    this.#waiting = new Set(turns.map((turn) => turn.session_id));
    this.draw();
    return turns;
  }

  async #count() {
    if (this.#counts.limit !== null && Date.now() - this.#counted < RARELY_MS) return;
    this.#counted = Date.now();
    this.#counts = await get("/counts");
  }

  /** Read the first page, and as much of the list as is shown. */
  async #readAgain() {
    const asked = this.#asked;
    const page = await get("/sessions", { ...this.#question(), limit: Math.min(MOST_READ_AGAIN, Math.max(PAGE, this.#rows.size)) });
    if (asked !== this.#asked) return;
    const read = new Map(page.sessions.map((row) => [row.session_id, row]));
    const oldest = page.cursor === null ? Infinity : Math.min(...page.sessions.map((row) => row.updated));
    const older = this.#read === 0 ? [] : [...this.#rows].filter(([id, row]) => !read.has(id) && row.updated <= oldest && page.cursor !== null);
    this.#rows = new Map([...read, ...older]);
    if (!older.length) this.#cursor = page.cursor;
    this.#read = Date.now();
  }

  #question = () => ({ state: this.#filter === "all" ? undefined : this.#filter, search: this.#text || undefined });

  /** Ask the server for other sessions: those of another filter, or with another text. */
  #ask() {
    this.#asked += 1;
    this.#text = this.search.value.trim();
    this.#cursor = null;
    this.#read = 0;
    this.draw();
    const asked = this.#asked;
    this.#readFirst(asked).then(() => asked === this.#asked && this.messages.ask(this.#text, this.#counts.searchable)).catch((problem) => notify(problem.message));
  }

  async #readFirst(asked) {
    await this.#readAgain();
    if (asked === this.#asked && this.#text && this.#rows.size < PAGE) await this.#readMore();
    this.draw();
  }

  #typing() {
    this.draw();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#ask(), TYPING_MS);
  }

  /** Mark the session that is shown. */
  open(id) {
    this.#open = id;
    this.draw();
  }

  /** How many sessions there are, and how many turns run, are suspended, and have failed; null where that is unknown. */
  counts = () => this.#counts;

  /** The names of the agents of these sessions. */
  agents = () => [...new Set([...this.#rows.values()].map((row) => row.agent).filter(Boolean))].sort();

  draw() {
    for (const one of this.filters) one.update(this.#counts[one.name === "all" ? "sessions" : one.name], this.#filter === one.name);
    const shown = this.#shown();
    arrange(byId("list"), shown, (row) => row.session_id, () => new Row((row) => this.#stateOf(row)));
    for (const view of byId("list").views.values()) view.mark(this.#open);
    show(byId("more"), this.#cursor !== null);
    say(byId("more"), this.#text ? "Search older sessions" : "Show older sessions");
    const note = byId("list-note");
    show(note, this.#read > 0 && shown.length === 0);
    const searched = this.#cursor === null ? "No session has" : "None of the sessions searched so far has";
    say(note, this.#text ? `${searched} “${this.#text}”. Enter opens the session of this id.` : this.#filter === "all" ? "There are no sessions yet." : "None of these.");
    for (const row of this.#rows.values()) if (titleOf(row)) this.#titles.set(row.session_id, titleOf(row));
    const open = this.#rows.get(this.#open);
    if (open) this.ondescribe(open);
  }

  /** What was read and fits, also before the server has answered. */
  #shown() {
    const text = this.search.value.trim().toLowerCase();
    const fits = (row) => [row.session_id, titleOf(row), row.agent, row.tenant].some((one) => one?.toLowerCase().includes(text));
    const shown = [...this.#rows.values()].filter((row) => (this.#filter === "all" || this.#stateOf(row) === this.#filter) && (!text || fits(row)));
    return shown.sort((one, other) => other.updated - one.updated);
  }

  #stateOf = (row) => (this.#waiting.has(row.session_id) ? "suspended" : row.closed && row.status === "done" ? "closed" : row.status);

  /** Read on: a page of the list, or of a search as many as it needs to find some, up to a limit. */
  async #readMore() {
    const asked = this.#asked;
    const enough = this.#rows.size + (this.#text ? PAGE / 2 : 1);
    for (let pages = 0; pages < PAGES_AT_ONCE && this.#cursor !== null && this.#rows.size < enough; pages += 1) {
      const page = await get("/sessions", { ...this.#question(), limit: PAGE, cursor: this.#cursor });
      if (asked !== this.#asked) return;
      for (const row of page.sessions) if (!this.#rows.has(row.session_id)) this.#rows.set(row.session_id, row);
      this.#cursor = page.cursor;
    }
    this.draw();
  }

  #filterButton(name, word) {
    const number = h("b", {});
    const node = h("button", { type: "button", class: "chip", "data-state": name, onclick: () => { this.#filter = name; this.#ask(); } }, word, " ", number);
    const shown = (found) => (found === null ? "" : found === this.#counts.limit ? `${count(found)}+` : count(found));
    return { name, node, update: (found, on) => { say(number, shown(found)); node.setAttribute("aria-pressed", on); } };
  }

  #typed(event) {
    if (event.key === "ArrowDown") return this.#focus(0, event);
    const text = this.search.value.trim();
    if (event.key !== "Enter" || !text || event.isComposing) return undefined;
    const [first] = this.#shown();
    const id = this.#rows.has(text) || !first ? text : first.session_id;
    location.hash = addressOf(id);
    return undefined;
  }

  /** The arrow keys move through the list. */
  #moved(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const links = this.#links();
    const place = links.indexOf(document.activeElement);
    if (event.key === "Home") this.#focus(0, event);
    else if (event.key === "End") this.#focus(links.length - 1, event);
    else if (step && place + step < 0) this.search.focus();
    else if (step) this.#focus(place + step, event);
  }

  #links = () => [...document.querySelectorAll("#list a, #hits a")];

  #focus(place, event) {
    const link = this.#links()[place];
    if (!link) return;
    event.preventDefault();
    link.focus();
  }
}

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
    this.link.href = addressOf(row.session_id);
    say(this.name, titleOf(row) || row.session_id);
    say(this.state, state === "done" ? "" : statusWord(state));
    this.link.title = row.session_id;
    say(this.meta, line([row.tenant, row.agent, many(row.messages, "message"), row.turns > 1 && `${count(row.turns)} turns open`, ago(row.updated)]));
  }

  mark(open) {
    if (this.id === open) this.link.setAttribute("aria-current", "page");
    else this.link.removeAttribute("aria-current");
  }
}
