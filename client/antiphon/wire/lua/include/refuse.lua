-- Fail a job that is not a turn. RQ's failed registry shows it; nothing else changes.
local function refuse(job, queue, message, now)
  redis.call('HSET', key_rq_job(job), 'status', 'failed', 'exc_info', message, 'ended_at', iso(now), 'worker_name', '')
  redis.call('EXPIRE', key_rq_job(job), KEEP_TURN_SECONDS)
  rq_failure(job, '', message)
  redis.call('ZADD', key_rq_failed(queue), math.floor(now / 1000) + KEEP_TURN_SECONDS, job)
end
