-- Decide about an open call of a suspended turn. When the last one is decided, the turn is queued. `op` names the call.
-- `json` is the decision, without its time. The first write is an HSET, which is refused at full memory.
-- @args turn call op kind json keep_events
-- -> DECIDED               (also for a repetition)
-- -> ALREADY, decision     it was decided before: this is the first decision
-- -> NOT_SUSPENDED, status
-- -> UNKNOWN_CALL          the turn waits, but not for this call
-- -> OTHER_KIND, kind      a call of this kind takes no such decision
-- -> TURN_NOT_FOUND
-- @include publish rq_view shares inbox let_in holder notices conclude cancelled suspended resumed withdraw
local session, status = unpack(redis.call('HMGET', key_turn(turn), 'session', 'status'))
if not session then return {'TURN_NOT_FOUND'} end
local now, n = now_ms(), 1
local open = open_call(turn, n)
while open and open.id ~= call do
  n = n + 1
  open = open_call(turn, n)
end
local first, by = decision_of(turn, n)
if first and by == op then return {'DECIDED'} end
if first then return {'ALREADY', first} end
if status == 'suspended' and cancelled_in_rq(turn) then
  withdraw(session, turn, IN_RQ, now, tonumber(keep_events))
  status = 'cancelled'
end
if status ~= 'suspended' then return {'NOT_SUSPENDED', status} end
if not open then return {'UNKNOWN_CALL'} end
local fits = kind == 'reject' or kind == (open.kind == 'tool' and 'result' or 'approve')
if not (fits and decidable(open.kind)) then return {'OTHER_KIND', open.kind} end
write_decision(turn, n, op, json, now)
local soonest, _, told = decided(turn)
if not soonest then resume(session, turn, now, told) end
return {'DECIDED'}
