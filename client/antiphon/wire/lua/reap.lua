-- Check the sessions that are due: recover a turn whose lease has expired, start a retry that is due, and put back into
-- RQ's queue what RQ's tools have removed. With `holder`, recover everything that this dead worker held, at once.
-- A job in one of `queues` that is not yet a turn is offered again if the worker that had taken it died.
-- With `spare` = '1' a holder whose lease has expired gets more time, and everything else goes on.
-- The first write is a ZREM of nothing, so that it works at full memory. Repeating the call does no harm.
-- `code` and `reason` say how the holder ended; for an expired lease they are 'worker_died'.
-- @args holder limit crash_limit keep_events code reason spare queues...
-- -> REAPED, acts          each: {session, turn, what}; of a job that is no turn: {'', job, what}
-- @include publish rq_view shares ended_turns inbox let_in holder retry notices conclude suspended resumed events withdraw cancelled give_up damage watch look refuse crashed jobs clock_back
local SPARED_IN_FRONT = 10 -- spared sessions stay in front of those that are due, so more are read
local now, acts = now_ms(), {}
redis.call('ZREM', key_active(), '')

local function act(session, turn, what) acts[#acts + 1] = {session, turn, what} end

local function inspect(session) -- @often
  local f = redis.call('HMGET', key_session(session), 'fence', 'lease', 'turn', 'holder')
  if (f[1] or '') ~= '' then
    if holder ~= '' and f[4] ~= holder then return end
    if holder == '' and (tonumber(f[2]) or 0) > now then return redis.call('ZADD', key_active(), f[2], session) end
    if spare == '1' then return end
    local crashes = redis.call('HGET', key_turn(f[3] or ''), 'crashes')
    if crashes then return crashed(session, f[3], tonumber(crashes) + 1, now, act) end
  end
  if (f[4] or '') ~= '' then let_go(session) end
  look(session, now, act)
end

-- A session with damaged data is set aside, and the others go on. While it is looked at it counts as whole.
local function attempt(session, work, ...) -- @often
  local since = redis.call('HGET', key_quarantined(), session)
  if since then redis.call('HDEL', key_quarantined(), session) end
  local done, why = guarded(work, ...)
  if done then return end
  if since then redis.call('HSET', key_quarantined(), session, since) end
  if set_aside(session, now, why) then act(session, '', 'quarantined') end
end

local function due(turn)
  local f = read_turn(turn)
  redis.call('HDEL', key_quarantined(), turn)
  redis.call('ZREM', key_due(), turn)
  if f and cancelled_in_rq(turn) then
    withdraw(f.session, turn, IN_RQ, now, tonumber(keep_events))
    act(f.session, turn, 'cancelled')
  elseif f then
    enter_inbox(f.session, turn, f.run, now, input_of(turn))
    act(f.session, turn, 'due')
  end
end

-- A turn that others pass by. What an older release has cancelled there enters its inbox, as it should have.
local function passed_by(turn)
  local f = read_turn(turn)
  redis.call('HDEL', key_quarantined(), turn)
  if not f then
    redis.call('ZREM', key_aside(), turn)
  elseif cancelled_in_rq(turn) or f.status ~= 'suspended' then
    withdraw(f.session, turn, f.cancel or IN_RQ, now, tonumber(keep_events))
    act(f.session, turn, 'cancelled')
  else
    local next_at = watch(f.session, turn, now, act)
    if next_at then redis.call('ZADD', key_aside(), next_at, turn) end
  end
end

-- A turn outside its inbox that could not enter it is looked at again in a minute, unless it stands there already.
local function put_off(key, turn, why)
  local session = redis.pcall('HGET', key_turn(turn), 'session')
  if type(session) == 'string' and type(redis.pcall('LPOS', key_inbox(session), turn)) == 'number' then
    redis.call('ZADD', key_active(), now + QUARANTINE_MS, session)
  else
    redis.call('ZADD', key, now + QUARANTINE_MS, turn)
  end
  if quarantine(turn, now, why) then act('', turn, 'quarantined') end
end

-- RQ's tools may write at any time, and no script of ours rewrites the record of an ended turn. An entry that `job.cancel()`
-- registers expires at once, ours after a time. RQ's failures look like ours, so the newest ones are checked.
local RQ_CLOCK_SECONDS = 60
local NEWEST_FAILED = 15
local RQ_MARK_SECONDS = 60 -- what RQ's `job.cancel()` registers has ended at once, and is looked at before it goes

local function told_otherwise(turn, registered, registry)
  local status, deleted, session = unpack(redis.call('HMGET', key_turn(turn), 'status', 'deleted', 'session'))
  if status == 'suspended' and registered == 'canceled' then -- its next look may be far off
    local aside = redis.call('ZSCORE', key_aside(), turn)
    local name = aside and turn or session
    if redis.call('HEXISTS', key_quarantined(), name) == 0 then
      redis.call('ZADD', aside and key_aside() or key_active(), 'XX', 'LT', now, name)
    end
  end
  if deleted then -- a worker of RQ's has written what its job said after that
    redis.call('ZREM', registry, turn)
    return redis.call('DEL', key_rq_job(turn), key_rq_results(turn))
  end
  if (status == 'finished' or status == 'failed' or status == 'cancelled') and RQ_STATUS[status] ~= registered then
    redis.call('ZREM', registry, turn) -- it may be that of another queue
    rq_view(turn, status, now)
    act(session, turn, 'corrected')
  end
end

local function look_at_ends(queue)
  local soon = math.floor(now / 1000) + RQ_CLOCK_SECONDS
  for _, turn in ipairs(redis.call('ZREVRANGEBYSCORE', key_rq_canceled(queue), soon, '-inf', 'LIMIT', 0, limit)) do
    guarded(told_otherwise, turn, 'canceled', key_rq_canceled(queue))
  end
  for _, turn in ipairs(redis.call('ZREVRANGE', key_rq_failed(queue), 0, NEWEST_FAILED)) do
    guarded(told_otherwise, turn, 'failed', key_rq_failed(queue))
  end
  local over = string.format('(%.0f', now / 1000 - RQ_MARK_SECONDS)
  for _, registry in ipairs({key_rq_finished(queue), key_rq_failed(queue), key_rq_canceled(queue)}) do
    redis.call('ZREMRANGEBYSCORE', registry, '-inf', over)
  end
end

-- A reaper or the archiver checks what is set aside again within a minute. An entry that neither will check has ended, or
-- was mended and has gone on.
local function forget_mended()
  for _, name in ipairs(redis.call('HRANDFIELD', key_quarantined(), 100)) do
    local ending = tonumber(redis.call('ZSCORE', key_ending(), name) or now + QUARANTINE_MS + 1)
    if not redis.call('ZSCORE', key_active(), name) and not redis.call('ZSCORE', key_due(), name)
      and not redis.call('ZSCORE', key_aside(), name) and ending > now + QUARANTINE_MS then
      redis.call('HDEL', key_quarantined(), name)
    end
  end
end

follow_clock(now)
if spare ~= '1' then look_at_jobs(now, act) end
if holder ~= '' then
  for _, session in ipairs(redis.call('HKEYS', key_held(holder))) do
    if session ~= '' then attempt(session, inspect, session) end
  end
  redis.call('DEL', key_held(holder))
  return {'REAPED', acts}
end
for _, queue in ipairs(queues) do guarded(look_at_ends, queue) end
forget_mended()
local checked = spare == '1' and limit * SPARED_IN_FRONT or limit
for _, session in ipairs(redis.call('ZRANGEBYSCORE', key_active(), '-inf', now, 'LIMIT', 0, checked)) do
  attempt(session, inspect, session)
end
for _, outside in ipairs({{key_due(), due}, {key_aside(), passed_by}}) do
  local key, look_at = unpack(outside)
  for _, turn in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, limit)) do
    local done, why = guarded(look_at, turn)
    if not done then put_off(key, turn, why) end
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
