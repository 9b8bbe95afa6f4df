-- Keep the request of a model step until it is sent in a batch, with others of its `group`: after `collect_ms`, or at once where there are
-- `size` of them. The step's `id` cannot be guessed. `wait` is what its turn will wait for. A repetition changes nothing.
-- The first write is an HSET, which is refused at full memory.
-- @args session turn fence id wait group body collect_ms size keep_ms
-- -> COLLECTED             (also for a repetition)
-- -> SUPERSEDED
-- @include holder
if not holds(session, fence) then return {'SUPERSEDED'} end
if redis.call('EXISTS', key_batch_step(id)) == 1 then return {'COLLECTED'} end
local now, outbox = now_ms(), key_batch_outbox(group)
redis.call('HSET', key_batch_step(id), 'turn', turn, 'run', redis.call('HGET', key_turn(turn), 'run'), 'session', session, 'wait', wait, 'body', body)
redis.call('ZADD', outbox, now, id)
redis.call('ZADD', key_batch_groups(), 'LT', now + (redis.call('ZCARD', outbox) >= tonumber(size) and 0 or collect_ms), group)
for _, key in ipairs({key_batch_step(id), outbox, key_batch_groups()}) do
  redis.call('PEXPIRE', key, keep_ms)
end
return {'COLLECTED'}
