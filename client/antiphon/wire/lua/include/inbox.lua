-- Moving turns through a session's inbox. A session with turns in it does not expire; `active` names it.
local LOOK_AGAIN_MS = 30000
local EDIT_MS = 1000
local DEFAULT_TTL_MS = 2592000000
local FOR_EVER_MS = 100 * 365 * 86400000

-- What is kept already has no expiry anywhere: the hash lives longest.
local function keep_session(session)
  if redis.call('PERSIST', key_session(session)) == 0 then return end
  redis.call('PERSIST', key_history(session))
  redis.call('PERSIST', key_events(session))
  redis.call('PERSIST', key_turns(session))
end

-- Its place in the list of sessions, by the end of its life; a `ttl` of 0 is for ever.
local function list_session(session, now, ttl)
  redis.call('ZADD', key_sessions(), now + (ttl > 0 and ttl or FOR_EVER_MS), session)
end

-- How long before its end a session is archived, and how long it lives from each attempt on.
local function lead_of(ttl)
  return math.max(600000, math.min(86400000, math.floor(ttl / 2)))
end

-- Its delayed turns must still find it. `archived` is there in sessions that are to be archived before they end.
local function release_session(session, now)
  local f = redis.call('HMGET', key_session(session), 'ttl', 'due_until', 'archived')
  local ttl = tonumber(f[1] or DEFAULT_TTL_MS) or DEFAULT_TTL_MS
  if ttl <= 0 then return list_session(session, now, ttl) end
  local lead = lead_of(ttl)
  ttl = ttl + math.max(0, (tonumber(f[2] or 0) or 0) - now)
  if f[3] then redis.call('ZADD', key_ending(), now + ttl - lead, session) end
  list_session(session, now, ttl)
  redis.call('PEXPIRE', key_history(session), ttl)
  redis.call('PEXPIRE', key_events(session), ttl)
  redis.call('PEXPIRE', key_turns(session), ttl)
  redis.call('PEXPIRE', key_session(session), ttl + HASH_LIVES_ON_MS)
end

local function ring(queue)
  if redis.call('LLEN', key_bell(queue)) == 0 then
    redis.call('RPUSH', key_bell(queue), '1')
    redis.call('PEXPIRE', key_bell(queue), 60000)
  end
end

-- Put a turn where workers, ours and RQ's own, find it. `offered_at` tells whose entry stands before whose: what
-- jumps the queue stands before everything. RQ has never heard of an `unheard` one.
local function offer(session, turn, now, front, unheard)
  redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)
  redis.call('HSET', key_turn(turn), 'status', 'queued', 'offered_at', front and 0 or now)
  local queue = rq_view(turn, 'queued', now, nil, unheard)
  redis.call('SADD', key_rq_queues(), key_rq_queue(queue))
  redis.call(front and 'LPUSH' or 'RPUSH', key_rq_queue(queue), turn)
  ring(queue)
end

-- The head of the inbox is claimable now; with an empty inbox the session's life begins to run out.
-- What was cancelled with RQ's tools while it waited is left to the reaper, who looks at once. Where an edit has
-- waited for the turn that ended, it goes first: the head is kept back for a moment, which the reaper ends.
local function ready(session, now, front)
  local head = redis.call('LINDEX', key_inbox(session), 0)
  if head and redis.call('HGET', key_rq_job(head), 'status') == 'canceled' then
    local f = redis.call('HMGET', key_turn(head), 'queue', 'execution')
    redis.call('ZREM', key_rq_started(f[1]), head .. ':' .. (f[2] or ''))
    redis.call('HSET', key_turn(head), 'status', 'queued')
    redis.call('ZADD', key_active(), now, session)
  elseif head and not front and redis.call('HDEL', key_session(session), 'edit_waits') == 1 then
    redis.call('ZADD', key_active(), now + EDIT_MS, session)
  elseif head then
    offer(session, head, now, front)
  else
    redis.call('ZREM', key_active(), session)
    release_session(session, now)
  end
end

-- A new run of a turn stands at the end of its session's inbox. Returns its position there. `last` is the session's
-- seq where the caller has read it; RQ has never heard of an `unheard` turn.
local function enter_inbox(session, turn, run, now, last, unheard)
  local position = redis.call('RPUSH', key_inbox(session), turn) - 1
  keep_session(session)
  local seq = publish(session, now, {
    event_body('turn_queued', session, turn, run, ',"position":' .. position),
  }, last)
  redis.call('HSET', key_turn(turn), 'queued_seq', seq, 'queued_at', now, 'position', position)
  if position == 0 then
    offer(session, turn, now, false, unheard)
  else
    redis.call('HSET', key_turn(turn), 'status', 'waiting')
    rq_view(turn, 'waiting', now, nil, unheard)
  end
  return position
end
