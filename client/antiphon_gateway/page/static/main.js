/** The page: which part of it is shown, who may read it, and when it looks again. */

import { Follower, key } from "./reading/api.js";
import { Composer } from "./composer.js";
import { byId, h, notify, onSubmit, show } from "./showing/dom.js";
import { Overview } from "./overview.js";
import { SessionList } from "./sessions.js";
import { OpenSession } from "./session.js";

const LOOK_MS = 2500;
const AFTER_CHANGE_MS = 150;

let timer = 0;
let failures = 0;
let looking = false;

const session = new OpenSession(() => lookAfter(AFTER_CHANGE_MS), (busy) => composer.offer(busy));
const composer = new Composer(session);
const sessions = new SessionList((row) => { session.describe(row); composer.update(); });
const overview = new Overview();
overview.failed.onchange = () => lookAfter(0);
const follow = followEnds();

/** #/ shows the list, and beside it the overview; #/overview; #/sessions/ID. */
function route() {
  const [, where, id = ""] = location.hash.split("/");
  const before = session.id;
  if (where === "sessions" && id) {
    const known = decoded(id);
    if (known !== session.id) {
      session.open(known);
      composer.open(before, known);
      composer.update();
    }
  } else {
    session.close();
    if (before !== null) composer.open(before, null);
  }
  document.body.dataset.route = session.id !== null ? "session" : where === "overview" ? "overview" : "home";
  document.title = session.id === null ? "Antiphon live" : `${session.id} – Antiphon live`;
  show(byId("session"), session.id !== null);
  show(byId("overview"), session.id === null);
  sessions.open(session.id);
  if (session.id !== null && before !== session.id && matchMedia("(pointer: fine)").matches) byId("text").focus({ preventScroll: true });
  lookAfter(0);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function lookAfter(ms) {
  clearTimeout(timer);
  timer = setTimeout(look, ms);
}

/** Read the list and, where it is shown, the overview; again after a while, less often while nothing answers. */
async function look() {
  if (looking || document.hidden || byId("sign-in").open) return;
  looking = true;
  try {
    const waiting = await sessions.refresh();
    if (session.id === null) {
      await overview.refresh(waiting, sessions.counts());
      session.read().catch(() => {}); // so that the first session opens at once
    }
    const names = sessions.agents();
    if (byId("agents").children.length !== names.length) byId("agents").replaceChildren(...names.map((name) => h("option", { value: name })));
    failures = 0;
    follow();
  } catch (problem) {
    failures += 1;
    if (problem.status === 401) signIn(key.get() ? problem.message : "");
    else if (failures === 1) notify(problem.message);
  } finally {
    looking = false;
    lookAfter(Math.min(30_000, LOOK_MS * 2 ** Math.min(failures, 4)));
  }
}

/** Look at once when a turn of any session ends or waits for somebody. */
function followEnds() {
  let follower = null;
  return () => {
    follower ??= new Follower(undefined, { onevent: () => lookAfter(AFTER_CHANGE_MS) });
  };
}

function signIn(why) {
  if (byId("sign-in").open) return;
  if (why) byId("sign-in-why").textContent = why;
  byId("sign-in").showModal();
}

function setUpKey() {
  show(byId("leave"), key.get() !== null);
  byId("sign-in").addEventListener("cancel", (event) => event.preventDefault());
  onSubmit(byId("sign-in").querySelector("form"), () => {
    key.keep(byId("key").value.trim());
    location.reload();
  });
  byId("leave").addEventListener("click", () => {
    key.forget();
    location.hash = "#/";
    location.reload();
  });
}

function setUpTheme() {
  const root = document.documentElement;
  const kept = localStorage.getItem("antiphon-theme");
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  byId("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("antiphon-theme", root.dataset.theme);
  });
}

byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  (session.id === null ? byId("main") : byId("text")).focus();
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => { if (!document.hidden) lookAfter(0); });
setUpKey();
setUpTheme();
route();
