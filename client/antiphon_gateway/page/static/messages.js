/** The messages that a search finds, below the sessions. */

import { get } from "./reading/api.js";
import { addressOf, arrange, byId, h, onPress, say, show } from "./showing/dom.js";
import { ago, line } from "./showing/format.js";

const PAGE = 10;
const WITHOUT = "Messages are not searched: that needs workers with App(search=True), and a gateway with their --archive.";
const A_WORD = /[\p{L}\p{N}]/u;

export class MessageSearch {
  #hits = [];
  #cursor = null;
  #text = "";

  /** `nameOf(id)` is how the list shows a session. */
  constructor(nameOf) {
    this.nameOf = nameOf;
    onPress(byId("more-found"), () => this.#readMore());
  }

  /** Search for another text, if the deployment has a search. Throws `AntiphonError`. */
  async ask(text, searchable) {
    Object.assign(this, { searchable });
    this.#text = A_WORD.test(text) ? text : "";
    this.#hits = [];
    this.#cursor = null;
    this.draw();
    if (this.#text && searchable) await this.#readMore();
  }

  async #readMore() {
    const asked = this.#text;
    const page = await get("/search", { text: asked, limit: PAGE, cursor: this.#cursor ?? undefined });
    if (asked !== this.#text) return;
    this.#hits.push(...page.hits);
    this.#cursor = page.cursor ?? null;
    this.draw();
  }

  draw() {
    show(byId("found"), Boolean(this.#text));
    arrange(byId("hits"), this.#hits, (hit) => `${hit.session_id} ${hit.turn_id}`, () => new Hit(this.nameOf));
    show(byId("more-found"), this.#cursor !== null);
    const note = byId("found-note");
    show(note, !this.#hits.length);
    say(note, this.searchable ? `No message has “${this.#text}”.` : WITHOUT);
  }
}

class Hit {
  constructor(nameOf) {
    this.nameOf = nameOf;
    [this.name, this.text, this.meta] = ["name", "excerpt", "meta"].map((name) => h("span", { class: name }));
    this.link = h("a", {}, this.name, this.text, this.meta);
    this.node = h("li", {}, this.link);
  }

  update(hit) {
    this.link.href = addressOf(hit.session_id);
    this.link.title = hit.session_id;
    say(this.name, this.nameOf(hit.session_id));
    say(this.meta, line([hit.tenant, hit.agent, hit.created && ago(hit.created)]));
    if (!this.text.hasChildNodes()) this.text.append(...hit.excerpt.map((part) => (part.match ? h("mark", {}, part.text) : part.text)));
  }
}
