-- Fail a job that is not a turn. RQ's failed registry shows it; nothing else changes.
-- @args job queue worker message
-- -> OK
-- @include rq_view refuse
redis.call('ZREM', key_rq_started(queue), job .. ':' .. worker)
if redis.call('EXISTS', key_rq_job(job)) == 0 then return {'OK'} end
refuse(job, queue, message, now_ms())
return {'OK'}
