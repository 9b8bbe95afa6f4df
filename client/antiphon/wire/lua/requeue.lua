-- Offer a failed turn to the workers again, as `rq requeue` does: the one that claims it begins a new run.
-- @args turn
-- -> OK
-- -> NOT_FAILED, status
-- -> TURN_NOT_FOUND
-- @include rq_view inbox
local f = redis.call('HMGET', key_turn(turn), 'status', 'queue')
if not f[1] then return {'TURN_NOT_FOUND'} end
if f[1] ~= 'failed' then return {'NOT_FAILED', f[1]} end
rq_view(turn, 'queued', now_ms())
redis.call('EXPIRE', key_rq_job(turn), redis.call('TTL', key_turn(turn))) -- it goes with the turn, if nobody claims it
redis.call('SADD', key_rq_queues(), key_rq_queue(f[2]))
redis.call('RPUSH', key_rq_queue(f[2]), turn)
ring(f[2])
return {'OK'}
