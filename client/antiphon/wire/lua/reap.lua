-- Look at sessions that are due for a look: recover the turn of an expired lease, start a retry that is due, put back
-- into RQ's queue what RQ's tools have taken out. With `holder`, recover all that this dead worker held, at once.
-- A job in one of `queues` that is no turn yet, and whose worker died with it in its hands, is offered again.
-- First write is a ZREM, here of nothing, so that it works at full memory. Repeating it does no harm.
-- `code` and `reason` say how the holder ended; what is found by its expired lease is 'worker_died'.
-- @args holder limit crash_limit keep_events code reason queues...
-- -> REAPED, list of {session, turn, what}; of a job that is no turn: {'', job, what}
-- @include publish rq_view inbox holder retry conclude withdraw cancelled look refuse
local MOST_DEATHS = 3 -- a job that is no turn is only read
local now, acts = now_ms(), {}
redis.call('ZREM', key_active(), '')

local function act(session, turn, what) acts[#acts + 1] = {session, turn, what} end

-- A stock worker that died has left its own entries among RQ's running jobs: RQ would fail the job for them later.
local function forget_executions(turn)
  local queue = redis.call('HGET', key_turn(turn), 'queue')
  for _, execution in ipairs(redis.call('ZRANGE', key_rq_executions(turn), 0, -1)) do
    redis.call('ZREM', key_rq_started(queue), turn .. ':' .. execution)
  end
  redis.call('DEL', key_rq_executions(turn))
end

local function crashed(session, turn, crashes)
  redis.call('HSET', key_turn(turn), 'crashes', crashes)
  forget_executions(turn)
  let_go(session)
  if crashes < tonumber(crash_limit) then
    retry(session, turn, now, 0, reason, code)
    return act(session, turn, 'recovered')
  end
  local message, failed = 'The turn was given up after ' .. crashes .. ' crashes of its worker.', 'worker_crashed'
  if code ~= 'worker_died' then message, failed = message .. ' ' .. reason, code end
  redis.call('HSET', key_turn(turn), 'error', message, 'error_code', failed)
  conclude(session, turn, 'failed', now, {event_body('turn_failed', session, turn,
    redis.call('HGET', key_turn(turn), 'run'), ',"code":' .. json_text(failed) .. ',"message":' .. json_text(message))},
    tonumber(keep_events))
  ready(session, now)
  act(session, turn, 'failed')
end

-- RQ calls a job that its own workers run started; ours leave it queued until it is a turn or has failed.
local function put_back(queue, entry)
  local job = string.match(entry, '^(.*):')
  if redis.call('EXISTS', key_turn(job)) == 0 and redis.call('HGET', key_rq_job(job), 'status') ~= 'queued' then return end
  redis.call('ZREM', key_rq_started(queue), entry)
  if redis.call('EXISTS', key_turn(job)) == 1 then return end
  if redis.call('HINCRBY', key_rq_job(job), 'ant_deaths', 1) >= MOST_DEATHS then
    refuse(job, queue, 'Its worker died ' .. MOST_DEATHS .. ' times while it read the job.', now)
    return act('', job, 'failed')
  end
  redis.call('LPUSH', key_rq_queue(queue), job)
  ring(queue)
  act('', job, 'repaired')
end

local function look_at_jobs()
  for _, queue in ipairs(queues) do
    local until_now = holder ~= '' and '(inf' or math.floor(now / 1000)
    for _, entry in ipairs(redis.call('ZRANGEBYSCORE', key_rq_started(queue), '-inf', until_now)) do
      if holder == '' or string.sub(entry, -#holder - 1) == ':' .. holder then put_back(queue, entry) end
    end
  end
end

local function inspect(session)
  local f = redis.call('HMGET', key_session(session), 'fence', 'lease', 'turn', 'holder')
  if (f[1] or '') ~= '' then
    if holder ~= '' and f[4] ~= holder then return end
    if holder == '' and tonumber(f[2]) > now then return redis.call('ZADD', key_active(), f[2], session) end
    local crashes = redis.call('HGET', key_turn(f[3]), 'crashes')
    if crashes then return crashed(session, f[3], tonumber(crashes) + 1) end
  end
  if (f[4] or '') ~= '' then let_go(session) end
  look(session, now, act)
end

look_at_jobs()
if holder ~= '' then
  for _, session in ipairs(redis.call('HKEYS', key_held(holder))) do
    if session ~= '' then inspect(session) end
  end
  redis.call('DEL', key_held(holder))
  return {'REAPED', acts}
end
for _, session in ipairs(redis.call('ZRANGEBYSCORE', key_active(), '-inf', now, 'LIMIT', 0, limit)) do
  inspect(session)
end
for _, turn in ipairs(redis.call('ZRANGEBYSCORE', key_due(), '-inf', now, 'LIMIT', 0, limit)) do
  local f = redis.call('HMGET', key_turn(turn), 'session', 'run')
  redis.call('ZREM', key_due(), turn)
  if f[1] and cancelled_in_rq(turn) then
    withdraw(f[1], turn, IN_RQ, now, tonumber(keep_events))
    act(f[1], turn, 'cancelled')
  elseif f[1] then
    enter_inbox(f[1], turn, f[2], now)
    act(f[1], turn, 'due')
  end
end
for _, session in ipairs(redis.call('ZRANGEBYSCORE', key_sessions(), '-inf', now - 3600000, 'LIMIT', 0, limit)) do
  if redis.call('EXISTS', key_session(session)) == 0 then
    redis.call('ZREM', key_sessions(), session)
  else
    redis.call('ZADD', key_sessions(), now, session)
  end
end
return {'REAPED', acts}
