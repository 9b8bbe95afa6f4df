-- Moving turns through a session's inbox. A session with turns in it does not expire; `active` names it.
local LOOK_AGAIN_MS = 30000
local EDIT_MS = 1000
local DEFAULT_TTL_MS = 2592000000
local FOR_EVER_MS = 100 * 365 * 86400000

-- If the hash has no expiry, none of the keys has one: the hash is kept longest. `media` is false if it has no files.
local function keep_session(session, media)
  if redis.call('PERSIST', key_session(session)) == 0 then return end
  for _, key in ipairs({key_history(session), key_events(session), key_turns(session), media ~= false and key_media(session) or nil}) do redis.call('PERSIST', key) end
end

-- Write its place in the list of sessions, which is ordered by the end of life; a `ttl` of 0 means for ever.
local function list_session(session, now, ttl)
  redis.call('ZADD', key_sessions(), now + (ttl > 0 and ttl or FOR_EVER_MS), session)
end

-- Add a turn to the list of its session's turns, which holds the last ones.
local KEPT_TURNS = 1000
local function list_turn(session, turn)
  if redis.call('RPUSH', key_turns(session), turn) > KEPT_TURNS then redis.call('LPOP', key_turns(session)) end
end

-- How long before its end a session is archived, and how long it lives from each attempt on.
local function lead_of(ttl)
  return math.max(600000, math.min(86400000, math.floor(ttl / 2)))
end

-- The keys stay at least until the last delayed turn is due, and while a turn that others pass by waits for decisions.
-- Sessions to be archived before they end have `archived`. `f` are these fields if the caller has read them. Events stay an
-- hour, or as long as `events_ttl` says (0: as the session).
local LIFE = {'ttl', 'due_until', 'archived', 'aside', 'media', 'ends', 'events_ttl'}
local function release_session(session, now, f)
  f = f or redis.call('HMGET', key_session(session), unpack(LIFE))
  local ttl = tonumber(f[1] or DEFAULT_TTL_MS) or DEFAULT_TTL_MS
  if ttl <= 0 or (tonumber(f[4] or 0) or 0) > 0 then
    keep_session(session, f[5])
    return pcall(list_session, session, now, ttl) -- a damaged list keeps no turn from its end
  end
  local lead = lead_of(ttl)
  ttl = ttl + math.max(0, (tonumber(f[2] or 0) or 0) - now)
  if f[3] then redis.pcall('ZADD', key_ending(), now + ttl - lead, session) end
  pcall(list_session, session, now, ttl)
  local of_events = tonumber(f[7] or '') or EVENTS_TTL_MS
  redis.call('PEXPIRE', key_events(session), of_events > 0 and math.min(ttl, of_events) or ttl)
  for _, key in ipairs({key_history(session), key_turns(session), f[5] and key_media(session) or nil}) do redis.call('PEXPIRE', key, ttl) end
  redis.call('PEXPIRE', key_session(session), ttl + HASH_LIVES_ON_MS)
end

local function ring(queue)
  if redis.call('LLEN', key_bell(queue)) == 0 then
    redis.call('RPUSH', key_bell(queue), '1')
    redis.call('PEXPIRE', key_bell(queue), 60000)
  end
end

-- Put a turn where our workers and RQ's find it. `offered_at` orders the entries of a queue: an entry at the front is before
-- all others. Its bell is rung once in a call of many turns.
local announced = {} -- @state
local function enter_queue(turn, f, now, front)
  local at, length = front and 0 or now, 1
  if not front and not f.tenant and f.priority == 'high' then
    at = push_second(turn, f.queue)
  else
    length = redis.call(front and 'LPUSH' or 'RPUSH', key_rq_queue(f.queue), turn)
  end
  if not f.new or f.offered_at ~= at then redis.call('HSET', key_turn(turn), 'status', 'queued', 'offered_at', at) end
  rq_view(turn, 'queued', now, nil, f)
  if announced[f.queue] then return end
  if length == 1 then redis.call('SADD', key_rq_queues(), key_rq_queue(f.queue)) end
  ring(f.queue)
  announced[f.queue] = true
end

-- A turn enters its queue, unless it has to wait for its share. Of a `new` one `active` has its session already.
local function offer(session, turn, now, front, new)
  if not new then redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session) end
  local f = new or viewed(turn)
  local whole, waits = pcall(lines_up, turn, f) -- where the keys of its share are damaged, a turn does not wait
  if whole and waits then
    redis.call('HSET', key_turn(turn), 'status', 'waiting')
    rq_view(turn, 'waiting', now, nil, f)
  else
    enter_queue(turn, f, now, front and waits ~= false)
  end
end

-- Offer the head of the inbox. If the inbox is empty, the session's time to live begins.
-- A head that was cancelled with RQ's tools while it waited is left to the reaper, which is due at once. An edit that has
-- waited for the ended turn goes first: the head is held for a moment, and the reaper offers it after that.
-- A caller that has taken the session out of `active` gives its `life` and its `head`, if there is one.
local function ready(session, now, front, head, life)
  head = head or not life and redis.call('LINDEX', key_inbox(session), 0)
  if head and redis.pcall('HGET', key_rq_job(head), 'status') == 'canceled' then
    redis.call('ZADD', key_active(), now, session)
    local f = redis.pcall('HMGET', key_turn(head), 'queue', 'execution')
    redis.call('ZREM', key_rq_started(f[1] or ''), head .. ':' .. (f[2] or ''))
    redis.pcall('HSET', key_turn(head), 'status', 'queued')
  elseif head and not front and redis.call('HDEL', key_session(session), 'edit_waits') == 1 then
    redis.call('ZADD', key_active(), now + EDIT_MS, session)
  elseif head then
    pcall(offer, session, head, now, front) -- where a key of the queue is damaged, the reaper offers it later
  else
    if not life then redis.call('ZREM', key_active(), session) end
    release_session(session, now, life)
  end
end

-- The input in `turn_queued`: the whole input, or a note that it is left out. It is the first field of the request.
local BEFORE_INPUT = #'{"messages":'
local function input_json(request, length)
  length = tonumber(length or 0) or 0
  if length <= 0 then return ',"input_omitted":true' end
  return ',"input":' .. string.sub(request, BEFORE_INPUT + 1, BEFORE_INPUT + length)
end

local function input_of(turn)
  local f = redis.call('HMGET', key_turn(turn), 'request', 'input')
  return input_json(f[1] or '', f[2])
end

-- Put a new run of a turn at the end of its session's inbox, or directly behind another turn. Returns its position there.
-- `said` is its input as JSON, `last` the session's seq if the caller has read it, the rest further fields of the session. Of a
-- turn that is new to RQ, `new` is what `viewed` returns, and its place has been written; `first_of` its session, no key expires.
local function enter_inbox(session, turn, run, now, said, last, new, behind, ...)
  local position = behind and behind.position + 1
  if behind then redis.call('LINSERT', key_inbox(session), 'AFTER', behind.turn, turn) end
  position = position or redis.call('RPUSH', key_inbox(session), turn) - 1
  if not (new and new.first_of) then keep_session(session, new and new.media) end
  local seq = publish(session, now, {
    event_body('turn_queued', session, turn, run, ',"position":' .. position .. said),
  }, last, ...)
  if not new then redis.call('HSET', key_turn(turn), 'queued_seq', seq, 'queued_at', now, 'position', position) end
  if position == 0 then
    offer(session, turn, now, new and new.front, new)
    return 0
  end
  if not new then redis.call('HSET', key_turn(turn), 'status', 'waiting') end
  rq_view(turn, 'waiting', now, nil, new)
  return position
end
