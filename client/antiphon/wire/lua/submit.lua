-- Accept a turn: it enters its session's inbox, or waits until it is due.
-- The client makes the turn id, so that a repeated call finds the turn of the first one.
-- The turn goes to the first queue that is set: its own, the session's, its agent's, that of the session's agent, the default.
-- With an empty `ttl_ms` the session keeps its own, or gets the default. The last one given wins; 0 means for ever.
-- `busy` is what to do if the inbox is not empty: enqueue, reject, interrupt, rollback or steer.
-- `named` is the agent as the turn keeps it: with its name alone, because the request has the rest.
-- `input` is the length of the input's JSON in the request, or 0. `again` names a request to run a failed turn again.
-- `priority` is high, low, or empty; of a sub-agent it is front: no caller can choose that.
-- `cursor` is the last event of the session that its caller has seen, or empty: then the session may have gone on.
-- @args session turn digest request queue agent_queue default_queue ttl_ms inbox_limit delayed_limit tenant_limit session_limit busy due_in_ms tail agent named metadata tenant key input again priority cursor user user_limit
-- -> ACCEPTED, position    (also for a repetition)
-- -> KEY_REUSED            the id belongs to another request
-- -> TURN_DELETED          its session was deleted, and what it said
-- -> SESSION_BUSY, turn    the inbox is not empty and the caller asked to be refused then
-- -> SESSION_CHANGED, seq  the session has gone on behind the cursor
-- -> INBOX_FULL, length
-- -> SESSION_CLOSED
-- -> OTHER_TENANT          the session belongs to another one, or to none
-- -> FULL, limit           Redis has as many as this limit allows
-- -> TENANT_LIMIT, limit, its number, ms to wait
-- -> OUT_OF_RANGE          no Redis can wait or keep that long
-- @include publish rq_view life shares ended_turns inbox let_in holder notices conclude suspended resumed withdraw stop busy erasing requeue run_again users tenants accept
return accept(now_ms(), session, turn, digest, request, queue, agent_queue, default_queue, ttl_ms, inbox_limit, delayed_limit,
  tenant_limit, session_limit, busy, due_in_ms, tail, agent, named, metadata, tenant, key, input, again, priority, cursor, user,
  user_limit)
