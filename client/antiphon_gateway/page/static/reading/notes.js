/** What is said between the pieces of an answer about an event: a sentence for each type. */

const budget = ({ unit, limit }) => (unit === "cost" ? `$${limit}` : unit === "tokens" ? `${limit} tokens` : limit);
const reduced = ({ messages, results }) => (messages ? `${messages} messages were left out` : `${results} results of tools were cut`);
const TOLD = /^turn_(suspended|finished|failed|cancelled)$/;
const progress = ({ type, name }) => ({ turn_queued: "began", tool_call: `calls ${name}` })[type] ?? TOLD.exec(type)?.[1];

export const NOTES = {
  budget_reached: (event) => `A budget of the ${event.scope} is used up (${budget(event)} per ${event.per}).`,
  context_reduced: (event) => `The model refused the length of the request: ${reduced(event)}.`,
  recall_failed: ({ memory, error }) => `The memory ${memory} did not answer (${error}).`,
  model_changed: ({ source, target, code }) => `${source} was given up (${code}); ${target} answers.`,
  child_event: ({ agent, event, child_id }) => progress(event) && `${agent}: ${progress(event)} (child turn ${child_id})`,
  handoff: ({ source, target, reason }) => `${source} handed over to ${target}${reason ? `: ${reason}` : "."}`,
};
