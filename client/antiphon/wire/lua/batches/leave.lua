-- The turn no longer needs the answer of a step: it is not sent, or its answer is dropped. Repeating the call changes nothing.
-- @args id group
-- -> UNSENT                (also for a repetition)
-- -> SENT                  it is in a batch, which may still be paid for
-- @include
local sent = redis.call('ZREM', key_batch_outbox(group), id) == 0 and redis.call('EXISTS', key_batch_step(id)) == 1
redis.call('DEL', key_batch_step(id))
return {sent and 'SENT' or 'UNSENT'}
