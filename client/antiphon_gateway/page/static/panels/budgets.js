/** The stored budgets of tenants, agents, users and sessions, and how much of each is used. */

import { clock, count, money } from "../showing/format.js";
import { PagedTable } from "../showing/paged_table.js";

const AGAIN_MS = 5000; // between two looks

export class Panel extends PagedTable {
  constructor() {
    super(AGAIN_MS, "budgets", "Budgets", "No budgets are stored.", keyOf, cells);
  }
}

const keyOf = ({ scope, tenant, name, state: { budget } }) => JSON.stringify([scope, tenant, name, budget]);

const cells = ({ scope, tenant, name, state }) => {
  const { budget, used, held, ends } = state;
  const shown = budget.cost === undefined ? count : money;
  const limit = budget.cost ?? budget.tokens;
  return {
    Of: scope,
    Name: [tenant, name ?? "all others"].filter(Boolean).join(" / "),
    Budget: `${shown(limit)}${budget.cost === undefined ? " tokens" : ""} per ${budget.per ?? "day"}`,
    Used: name === null ? "–" : `${shown(used)} (${Math.round((100 * used) / limit)} %)`,
    Held: name === null ? "–" : shown(held),
    Reached: budget.reached ?? "reject",
    Until: typeof ends === "number" ? clock(ends) : "–",
  };
};
