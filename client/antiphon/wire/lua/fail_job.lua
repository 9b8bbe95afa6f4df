-- Fail a job that is no turn: visibly in RQ's failed registry, alone.
-- @args job queue worker message
-- -> OK
-- @include rq_view
local now = now_ms()
redis.call('ZREM', key_rq_started(queue), job .. ':' .. worker)
if redis.call('EXISTS', key_rq_job(job)) == 0 then return {'OK'} end
redis.call('HSET', key_rq_job(job), 'status', 'failed', 'exc_info', message, 'ended_at', iso(now), 'worker_name', '')
redis.call('EXPIRE', key_rq_job(job), KEEP_TURN_SECONDS)
redis.call('ZADD', key_rq_failed(queue), math.floor(now / 1000) + KEEP_TURN_SECONDS, job)
return {'OK'}
