/** The agents of the workers with their revisions, and the figures of each. */

import { count } from "../showing/format.js";
import { PagedTable } from "../showing/paged_table.js";

const AGAIN_MS = 10_000; // between two looks, for which the gateway reads all unfinished turns

export class Panel extends PagedTable {
  constructor() {
    super(AGAIN_MS, "agents", "Agents", "No worker has agents of its own.", (one) => `${one.agent}@${one.revision}`, cells);
  }
}

const cells = (one) => {
  const { finished = 0, failed = 0, cancelled = 0, tool_calls = 0, tool_errors = 0, tokens = 0, cost = 0, seconds = 0, rated = 0, scores = 0 } = one.figures;
  const ended = finished + failed + cancelled;
  return {
    Agent: one.agent,
    Revision: one.label ? `${one.revision} (${one.label})` : one.revision,
    Share: typeof one.share === "number" ? `${+(one.share * 100).toFixed(4)} %` : "–",
    Workers: count(one.workers.length),
    Running: count(one.running),
    Ended: count(ended),
    Failed: count(failed),
    "Tool errors": tool_calls ? `${count(tool_errors)} of ${count(tool_calls)}` : "–",
    Tokens: count(tokens),
    Cost: `$${cost.toFixed(4)}`,
    Seconds: ended ? (seconds / ended).toFixed(2) : "–",
    Feedback: rated ? `${(scores / rated).toFixed(2)} (${count(rated)})` : "–",
  };
};
