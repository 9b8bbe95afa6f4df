/** The session that is open. Its view is read when the first session opens: the list and the overview do without it. */

import { notify, onDemand, styled } from "./showing/dom.js";

const AGAIN_MS = 1500;

/** `onchange` is called when a turn begins or ends, `onbusy` with whether there is one. */
export class OpenSession {
  id = null;
  #view = null;
  #facts = {};

  constructor(onchange, onbusy) {
    this.read = onDemand(async () => {
      const [{ SessionView }] = await Promise.all([import("./panels/session.js"), styled(new URL("panels/session.css", import.meta.url))]);
      this.#view = new SessionView(onchange, onbusy);
    });
  }

  /** The agent that the session began with; null before its first turn, undefined until the list was read. */
  get agent() {
    return this.#facts.agent;
  }

  /** Show another session. */
  async open(id) {
    if (id === this.id) return;
    this.close();
    this.id = id;
    await this.#reading(id);
    if (id !== this.id) return;
    this.#view.open(id);
    this.#view.describe(this.#facts);
  }

  close() {
    this.id = null;
    this.#facts = {};
    this.#view?.close();
  }

  /** Take what the list of sessions knows of this one. */
  describe(facts) {
    if (facts.session_id !== this.id) return;
    this.#facts = facts;
    this.#view?.describe(facts);
  }

  toEnd() {
    this.#view?.toEnd();
  }

  /** Read the view, trying again as long as this session is the open one. */
  async #reading(id) {
    for (let tries = 0; id === this.id; tries += 1) {
      try {
        return await this.read();
      } catch (problem) {
        if (tries === 0) notify(problem.message);
        await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
      }
    }
    return undefined;
  }
}
