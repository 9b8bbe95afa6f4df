-- Deliver the answer of a step in a batch to the turn that waits for it: `json` is the decision about the wait. The turn is queued. The first
-- answer counts. The first write is an HSET, which is refused at full memory, or a DEL.
-- @args id json
-- -> DELIVERED
-- -> LATER                 the turn is not suspended yet
-- -> GONE                  the turn does not wait for it any more, or has it
-- @include publish rq_view shares inbox let_in holder notices cancelled suspended resumed batches
local turn, session, wait, status = waiting_turn(id)
if status and status ~= 'suspended' then return {'LATER'} end
local now, n = now_ms(), 1
local call = turn and open_call(turn, n)
while call and call.id ~= wait do
  n = n + 1
  call = open_call(turn, n)
end
if not call or call.kind ~= 'batch' or decision_of(turn, n) or cancelled_in_rq(turn) then
  redis.call('DEL', key_batch_step(id))
  return {'GONE'}
end
write_decision(turn, n, 'batch', json, now)
redis.call('DEL', key_batch_step(id))
local soonest, _, told = decided(turn)
if not soonest then resume(session, turn, now, told) end
return {'DELIVERED'}
