-- RQ's record of a turn, and the registry of its queue that it is in. A turn that starts or ends changes what is different
-- then, and one that waits for decisions, if the record has the status of before. If RQ's tools have changed or deleted it, and
-- in all other transitions, the record is written whole, and the id removed from every registry.
local RQ_STATUS = {
  queued = 'queued', waiting = 'deferred', delayed = 'scheduled', retrying = 'scheduled', running = 'started',
  suspended = 'deferred', finished = 'finished', failed = 'failed', cancelled = 'canceled',
}

local function iso(ms)
  if not ms or ms == '' then return '' end
  local days, rest = math.floor(ms / 86400000), ms % 86400000
  local era = math.floor((days + 719468) / 146097)
  local doe = days + 719468 - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', yoe + era * 400 + (month <= 2 and 1 or 0), month, doy - math.floor((153 * mp + 2) / 5) + 1,
    math.floor(rest / 3600000), math.floor(rest / 60000) % 60, math.floor(rest / 1000) % 60, (rest % 1000) * 1000)
end

local function rq_forget(turn, queue, execution, said)
  if not said or said == 'deferred' then redis.call('ZREM', key_rq_deferred(queue), turn) end
  if not said or said == 'scheduled' then redis.call('ZREM', key_rq_scheduled(queue), turn) end
  for _, key in ipairs(said and {} or {key_rq_finished(queue), key_rq_failed(queue), key_rq_canceled(queue)}) do redis.call('ZREM', key, turn) end
  if (not said or said == 'started') and (execution or '') ~= '' then
    redis.call('ZREM', key_rq_started(queue), turn .. ':' .. execution)
  end
end

local function rq_register(turn, status, queue, execution, until_ms)
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
  end
end

local BASE64 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
local function base64(bytes)
  local coded = string.gsub(bytes .. string.rep('\0', -#bytes % 3), '...', function(three)
    local a, b, c = string.byte(three, 1, 3)
    local whole, found = a * 65536 + b * 256 + c, ''
    for place = 18, 0, -6 do
      local digit = math.floor(whole / 2 ^ place) % 64 + 1
      found = found .. string.sub(BASE64, digit, digit)
    end
    return found
  end)
  return string.sub(coded, 1, math.ceil(#bytes * 4 / 3)) .. string.rep('=', -#bytes % 3)
end

-- The text in zlib's format without compression: one stored block, and the text's Adler-32.
local function stored(text)
  local a, b, size = 1, 0, #text
  for i = 1, size do
    a = (a + string.byte(text, i)) % 65521
    b = (b + a) % 65521
  end
  local low, high = size % 256, math.floor(size / 256)
  return string.char(0x78, 0x01, 1, low, high, 255 - low, 255 - high) .. text
    .. string.char(math.floor(b / 256), b % 256, math.floor(a / 256), a % 256)
end

-- Write why a job failed where `Job.latest_result()` and RQ's dashboard read it: at most 4 KB, cut between characters.
-- A damaged key of RQ's does not prevent the end of a turn.
local function rq_failure(job, worker, message)
  local key, text = key_rq_results(job), string.sub(message, 1, 4096)
  if #message > #text then text = string.gsub(string.gsub(text, '[\128-\191]*$', ''), '[\192-\255]$', '') end
  redis.pcall('XADD', key, 'MAXLEN', 10, '*', 'type', 2, 'worker_name', worker, 'exc_string', base64(stored(text)))
  redis.call('EXPIRE', key, KEEP_TURN_SECONDS)
end

-- What a turn's record says of its place among others, by the names of its fields; nil where it says nothing.
local VIEWED = {'queue', 'session', 'execution', 'worker', 'queued_at', 'started_at', 'ended_at', 'error', 'tenant',
  'priority', 'status', 'offered_at', 'cancel', 'first_seq', 'done', 'user', 'front'}

local function viewed(turn) -- @often
  local f, found = {}, redis.call('HMGET', key_turn(turn), unpack(VIEWED))
  for i, name in ipairs(VIEWED) do f[name] = found[i] or nil end
  return f
end

-- How long RQ's record of a turn stays after its end, and how many fields a new one is written with.
local KEPT, RECORD_FIELDS = {finished = KEEP_JOB_SECONDS, cancelled = KEEP_JOB_SECONDS, failed = KEEP_TURN_SECONDS}, 10

-- Returns what `viewed` does; `f` is that, as it was before, if the caller has read it. A turn that is new to RQ has `f.new`,
-- and a record only if one of RQ's own jobs becomes that turn.
local function rq_view(turn, status, now, until_ms, f) -- @often
  f = f or viewed(turn)
  local queue, job, running, kept = f.queue, key_rq_job(turn), status == 'running', KEPT[status]
  local said = (running or kept or status == 'suspended') and redis.pcall('HGET', job, 'status')
  if said ~= RQ_STATUS[f.status] then said = nil end
  if not f.new then rq_forget(turn, queue, f.execution, said) end
  if said and running then
    redis.call('HSET', job, 'status', 'started', 'started_at', iso(f.started_at), 'worker_name', f.worker or '')
  elseif said and kept then
    redis.call('HSET', job, 'status', RQ_STATUS[status], 'ended_at', iso(f.ended_at), 'worker_name', '', 'exc_info', f.error or '')
  elseif said then
    redis.call('HSET', job, 'status', 'deferred', 'worker_name', '')
  else
    local queued_at, rest = iso(f.queued_at), f.new and {} or {'started_at', iso(f.started_at), 'ended_at', iso(f.ended_at),
      'worker_name', running and f.worker or '', 'exc_info', f.error or ''}
    local added = redis.call('HSET', job, 'data', '["antiphon_worker.jobs.run_turn",null,["' .. turn .. '"],{}]',
      'origin', queue, 'status', RQ_STATUS[status], 'description', f.session, 'timeout', '-1',
      'created_at', queued_at, 'enqueued_at', queued_at, 'result_ttl', KEEP_JOB_SECONDS, 'failure_ttl', KEEP_TURN_SECONDS,
      'ant_prefix', DEPLOYMENT, unpack(rest))
    local before = added < RECORD_FIELDS + #rest / 2 -- there was a record
    if before and f.new then redis.call('HSET', job, 'started_at', '', 'ended_at', '', 'worker_name', '', 'exc_info', '') end
    if before and not kept then redis.call('PERSIST', job) end
  end
  rq_register(turn, status, queue, f.execution, kept and now + kept * 1000 or until_ms)
  local at = tonumber(f.queued_at or '') or 1 -- below zero for turns of a tenant that stand in a queue or run
  if f.tenant then redis.pcall('ZADD', key_tenant(f.tenant), 'XX', (running or status == 'queued') and -at or at, turn) end
  if kept then redis.call('EXPIRE', job, kept) end
  return f
end
