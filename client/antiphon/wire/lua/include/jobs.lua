-- Jobs that are not yet turns are offered again if the worker that had taken them died.
local MOST_DEATHS = 3 -- such a job is only read

-- RQ's own workers set a job's status to started; ours leave it queued until it is a turn or has failed.
local function put_back(queue, entry, now, act)
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

local function look_at_jobs(now, act)
  for _, queue in ipairs(queues) do
    local until_now = holder ~= '' and '(inf' or math.floor(now / 1000)
    for _, entry in ipairs(redis.call('ZRANGEBYSCORE', key_rq_started(queue), '-inf', until_now)) do
      if holder == '' or string.sub(entry, -#holder - 1) == ':' .. holder then
        local done = guarded(put_back, queue, entry, now, act)
        if not done then redis.call('ZADD', key_rq_started(queue), math.floor(now / 1000) + 60, entry) end
      end
    end
  end
end
