/** Where messages are written: to the session that is open, or to a new one. */

import { path, post } from "./reading/api.js";
import { addressOf, byId, notify, onSubmit, press, show } from "./showing/dom.js";

const WAIT = "enqueue"; // what a message does beside a turn, unless its author says otherwise

export class Composer {
  #drafts = new Map(); // by session, what is written and not sent
  #names = new Map(); // by session and text, the key that makes sending it twice harmless

  constructor(session) {
    this.session = session;
    this.text = byId("text");
    this.ifBusy = byId("if-busy");
    onSubmit(byId("composer"), () => this.#send());
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    byId("new").addEventListener("click", () => byId("begin").showModal());
    byId("begin-leave").addEventListener("click", () => byId("begin").close());
    onSubmit(byId("begin").querySelector("form"), () => this.#begin());
  }

  /** Another session is shown: what was written to the last one stays with it. */
  open(before, id) {
    if (before !== null) this.#drafts.set(before, this.text.value);
    this.text.value = this.#drafts.get(id) ?? "";
    this.offer(false);
  }

  /** Ask what a message does to the turn, while there is one. A choice is for that turn and for one message. */
  offer(busy) {
    if (!busy) {
      if (document.activeElement === this.ifBusy) this.text.focus({ preventScroll: true });
      this.ifBusy.value = WAIT;
    }
    show(byId("busy-row"), busy);
  }

  /** Ask for an agent while the session has none. */
  update() {
    show(byId("agent-row"), this.session.agent === null);
  }

  #send() {
    const text = this.text.value.trim();
    const { id } = this.session;
    if (!text || id === null) return;
    press(byId("send"), async () => {
      await this.#submit(id, text, byId("agent-row").hidden ? "" : byId("agent").value.trim(), this.ifBusy.value);
      this.#drafts.delete(id);
      if (this.session.id === id) {
        this.ifBusy.value = WAIT;
        if (this.text.value.trim() === text) this.text.value = "";
      }
      this.session.toEnd();
    });
  }

  #begin() {
    press(byId("begin").querySelector(".main"), async () => {
      const text = byId("begin-text").value.trim();
      if (!text) return notify("Write the first message.");
      const id = byId("begin-id").value.trim() || (await post("/sessions", {}, newName())).session_id;
      byId("begin-id").value = id; // if what follows fails, the next try is the same session
      await this.#submit(id, text, byId("begin-agent").value.trim());
      byId("begin").close();
      for (const name of ["begin-id", "begin-text"]) byId(name).value = "";
      location.hash = addressOf(id);
      return undefined;
    });
  }

  async #submit(id, text, agent, if_busy = WAIT) {
    const place = JSON.stringify([id, text, agent]);
    if (!this.#names.has(place)) this.#names.set(place, newName());
    await post(path`/sessions/${id}/turns`, { input: text, if_busy, agent: agent ? agentOf(agent) : undefined }, this.#names.get(place));
    this.#names.delete(place);
  }
}

/** The name of an agent, or one that travels with the turn: provider/model. */
function agentOf(text) {
  const [provider, ...model] = text.split("/");
  return model.length ? { provider, model: model.join("/") } : text;
}

function newName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
