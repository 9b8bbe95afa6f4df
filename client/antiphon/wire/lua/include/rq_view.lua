-- RQ's record of a turn, rewritten whole from the turn at every transition: RQ's tools may have changed or
-- deleted it. The id is taken out of every registry of its queue, but for one `unheard` of so far, and put into the right
-- one.
local RQ_STATUS = {
  queued = 'queued', waiting = 'deferred', delayed = 'scheduled', retrying = 'scheduled', running = 'started',
  suspended = 'deferred', finished = 'finished', failed = 'failed', cancelled = 'canceled',
}

local function iso(ms)
  if not ms or ms == '' then return '' end
  local days, rest = math.floor(ms / 86400000), ms % 86400000
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, doy - math.floor((153 * mp + 2) / 5) + 1,
    math.floor(rest / 3600000), math.floor(rest / 60000) % 60, math.floor(rest / 1000) % 60, (rest % 1000) * 1000)
end

local function rq_forget(turn, queue, execution)
  redis.call('ZREM', key_rq_deferred(queue), turn)
  redis.call('ZREM', key_rq_scheduled(queue), turn)
  redis.call('ZREM', key_rq_finished(queue), turn)
  redis.call('ZREM', key_rq_failed(queue), turn)
  redis.call('ZREM', key_rq_canceled(queue), turn)
  if execution and execution ~= '' then
    redis.call('ZREM', key_rq_started(queue), turn .. ':' .. execution)
  end
end

local RQ_MARK_SECONDS = 60 -- what RQ's `job.cancel()` registers has ended at once, and is looked at before it goes

local function rq_register(turn, status, queue, execution, now, until_ms)
  local over = string.format('%.0f', now / 1000 - RQ_MARK_SECONDS)
  if status == 'running' then
    redis.call('ZADD', key_rq_started(queue), '+inf', turn .. ':' .. execution)
  elseif status == 'waiting' or status == 'suspended' then
    redis.call('ZADD', key_rq_deferred(queue), '+inf', turn)
  elseif status == 'delayed' or status == 'retrying' then
    redis.call('ZADD', key_rq_scheduled(queue), string.format('%.0f', until_ms / 1000), turn)
  elseif status ~= 'queued' then
    local registry = status == 'finished' and key_rq_finished(queue)
      or status == 'failed' and key_rq_failed(queue) or key_rq_canceled(queue)
    redis.call('ZADD', registry, string.format('%.0f', until_ms / 1000), turn)
    redis.call('ZREMRANGEBYSCORE', registry, '-inf', '(' .. over)
  end
end

-- Returns the turn's queue.
local function rq_view(turn, status, now, until_ms, unheard)
  local f = redis.call('HMGET', key_turn(turn), 'queue', 'session', 'execution', 'worker', 'queued_at',
    'started_at', 'ended_at', 'error')
  local queue, job, queued_at = f[1], key_rq_job(turn), iso(f[5])
  if not unheard then rq_forget(turn, queue, f[3]) end
  redis.call('HSET', job, 'data', '["antiphon_worker.jobs.run_turn",null,["' .. turn .. '"],{}]',
    'origin', queue, 'status', RQ_STATUS[status], 'description', f[2], 'timeout', '-1',
    'created_at', queued_at, 'enqueued_at', queued_at, 'started_at', iso(f[6]), 'ended_at', iso(f[7]),
    'worker_name', status == 'running' and f[4] or '', 'exc_info', f[8] or '',
    'result_ttl', KEEP_TURN_SECONDS, 'failure_ttl', KEEP_TURN_SECONDS)
  rq_register(turn, status, queue, f[3], now, until_ms)
  if status == 'finished' or status == 'failed' or status == 'cancelled' then
    redis.call('EXPIRE', job, KEEP_TURN_SECONDS)
  else
    redis.call('PERSIST', job)
  end
  return queue
end
