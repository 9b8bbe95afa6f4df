-- The turn no longer needs the answer of a step: it is not sent, or its answer is dropped. A repetition gets the same answer.
-- @args id group
-- -> UNSENT
-- -> SENT                  it is in a batch, which may still be paid for
-- @include
local sent = redis.call('ZREM', key_batch_outbox(group), id) == 0 and redis.call('EXISTS', key_batch_step(id)) == 1
if sent then
  redis.call('HDEL', key_batch_step(id), 'run', 'body') -- it stays in its batch, and its turn no longer waits
else
  redis.call('DEL', key_batch_step(id))
end
return {sent and 'SENT' or 'UNSENT'}
