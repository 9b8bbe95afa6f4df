/** Numbers, times and names as people read them. */

const numbers = new Intl.NumberFormat("en");
const clocks = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const days = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** 1234 → 1,234 */
export const count = (number) => numbers.format(number);

/** count(1, "message") → 1 message; many(2, "message") → 2 messages */
export const many = (number, name) => `${count(number)} ${name}${number === 1 ? "" : "s"}`;

/** How long something took, in ms → 850 ms, 3.2 s, 4 min */
export function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min`;
  if (ms < 86_400_000) return `${Math.floor(ms / 3_600_000)} h`;
  return `${Math.floor(ms / 86_400_000)} d`;
}

/** How long ago a time in ms was. */
export function ago(at) {
  const ms = Date.now() - at;
  return ms < 5000 ? "now" : `${duration(Math.floor(ms / 1000) * 1000).replace(".0", "")} ago`;
}

/** A time in ms: of today the time alone. */
export function clock(at) {
  const date = new Date(at);
  return date.toDateString() === new Date().toDateString() ? clocks.format(date) : days.format(date);
}

/** What tokens cost, in US dollars. */
export const money = (cost) => `$${cost < 0.01 ? cost.toFixed(5).replace(/0+$/, "").replace(/\.$/, ".00") : cost.toFixed(2)}`;

/** JSON for people. */
export const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** A text in one line. */
export function short(text, most = 80) {
  const line = text.replaceAll(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** What is known of some facts, in one line. */
export const line = (facts) => facts.filter(Boolean).join(" · ");

/** The title that a session was given. */
export const titleOf = ({ metadata }) => (typeof metadata?.title === "string" ? metadata.title : "");

const WORDS = {
  queued: "Queued", waiting: "Waiting", running: "Running", retrying: "Retrying", suspended: "Suspended",
  finished: "Finished", failed: "Failed", cancelled: "Stopped", delayed: "Delayed", done: "Idle", closed: "Closed",
};

/** The word for a status of a turn or a session. */
export const statusWord = (status) => WORDS[status] ?? status;
