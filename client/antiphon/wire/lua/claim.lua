-- Take up to `max` turns over the queues in their order: lease each session, make its fence, start and load the turn.
-- With `only`, that turn alone. `token` names the call: repeated with the same token it gives its first answer.
-- @args worker token lease_ms max only queues...
-- -> CLAIMED, turns, foreign jobs (id, queue, data), turns that must run alone
-- -> SUSPENDED             `rq suspend` is in force
-- @include publish rq_view inbox requeue load
local MOST_ENTRIES = 1000
-- By then a process of its own holds the turn, or it is offered to another worker: at once where this one dies.
local start_alone_ms = math.max(tonumber(lease_ms), 2000)
local now, held = now_ms(), key_held(worker)
local turns, foreign, alone = {}, {}, {}
if redis.call('HGET', held, '') == token then
  local entries = redis.call('HGETALL', held)
  for i = 1, #entries, 2 do
    if entries[i + 1] == 'alone-' .. token then
      alone[#alone + 1] = redis.call('LINDEX', key_inbox(entries[i]), 0) or nil
    elseif entries[i] ~= '' and string.sub(entries[i + 1], -#token) == token then
      turns[#turns + 1] = load(entries[i], redis.call('HGET', key_session(entries[i]), 'turn'))
    end
  end
  return {'CLAIMED', turns, foreign, alone}
end
if redis.call('EXISTS', key_rq_suspended()) == 1 then return {'SUSPENDED'} end

-- What has ended or waits for its session was put into the queue by RQ's tools: its record says again what it is.
local function stay(turn, status)
  if status ~= 'running' and status ~= 'suspended' and redis.call('HGET', key_rq_job(turn), 'status') == 'queued' then
    rq_view(turn, status, now, now + KEEP_TURN_SECONDS * 1000)
  end
end

-- `before` is who was to run the session's turn alone and has not: a holder without a fence.
local function hold(session, before, as)
  if (before or '') ~= '' then redis.call('HDEL', key_held(before), session) end
  redis.call('HSET', held, session, as, '', token)
  redis.call('PEXPIRE', held, 3600000)
end

local function fields_of(turn)
  return redis.call('HMGET', key_turn(turn), 'session', 'status', 'retry_at', 'crashes', 'run', 'step', 'cancel')
end

local function take(turn, f)
  local session, status = f[1], f[2]
  if status == 'failed' and redis.call('HGET', key_rq_job(turn), 'status') == 'queued' then
    if not requeue(session, turn, now) then return end
    f, status = fields_of(turn), 'queued'
  end
  if status == 'retrying' and tonumber(f[3]) > now then return end
  if status ~= 'queued' and status ~= 'retrying' then return stay(turn, status) end
  if redis.call('LINDEX', key_inbox(session), 0) ~= turn then return end
  local s = redis.call('HMGET', key_session(session), 'fence', 'holder', 'seq')
  if (s[1] or '') ~= '' then return end
  if tonumber(f[4]) >= 2 and only == '' then
    redis.call('ZADD', key_active(), now + start_alone_ms, session)
    hold(session, s[2], 'alone-' .. token)
    redis.call('HSET', key_session(session), 'holder', worker)
    alone[#alone + 1] = turn
    return
  end
  local fence = redis.call('INCR', key_fence()) .. '-' .. token
  redis.call('ZADD', key_active(), now + lease_ms, session)
  hold(session, s[2], fence)
  redis.call('HSET', key_session(session), 'fence', fence, 'holder', worker, 'lease', now + lease_ms, 'turn', turn,
    'batch', 0, 'stop', f[7] or '')
  local attempt = redis.call('HINCRBY', key_turn(turn), 'attempt', 1)
  local seq = publish(session, now, {event_body('turn_started', session, turn, f[5],
    ',"attempt":' .. attempt .. ',"step":' .. f[6] .. ',"worker":' .. json_text(worker))}, s[3])
  redis.call('HSETNX', key_turn(turn), 'first_seq', seq)
  redis.call('HSET', key_turn(turn), 'status', 'running', 'started_at', now, 'worker', worker, 'execution', fence)
  rq_view(turn, 'running', now)
  turns[#turns + 1] = load(session, turn)
end

if only ~= '' then
  redis.call('LREM', key_rq_queue(redis.call('HGET', key_turn(only), 'queue') or ''), 1, only)
  local f = fields_of(only)
  if f[1] then take(only, f) end
  return {'CLAIMED', turns, foreign, alone}
end
for i = 1, #queues do
  local queue = queues[i]
  for _ = 1, MOST_ENTRIES do
    if #turns + #foreign + #alone >= tonumber(max) then break end
    local id = redis.call('LPOP', key_rq_queue(queue))
    if not id then break end
    local f = fields_of(id)
    if f[1] then
      take(id, f)
    elseif redis.call('EXISTS', key_rq_job(id)) == 1 then
      redis.call('ZADD', key_rq_started(queue), math.floor(now / 1000) + 60, id .. ':' .. worker)
      foreign[#foreign + 1] = {id, queue, redis.call('HGET', key_rq_job(id), 'data') or ''}
    end
  end
  if redis.call('LLEN', key_rq_queue(queue)) > 0 then ring(queue) end
end
return {'CLAIMED', turns, foreign, alone}
