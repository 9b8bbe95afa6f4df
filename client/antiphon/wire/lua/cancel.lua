-- Cancel a turn: at once if no worker runs it; otherwise its holder is told. From now on it can end only as cancelled.
-- `keep` says what stays in the history: partial (the question and everything that was said), steps (the finished ones)
-- or nothing. The worker that ends the turn does this, so a turn with something to keep is offered to a worker.
-- The first write is a ZREM, so that it works at full memory.
-- @args turn reason keep keep_events
-- -> CANCELLED
-- -> REQUESTED             a worker runs it and will end it
-- -> ALREADY, status       it has ended before
-- -> TURN_NOT_FOUND
-- @include publish rq_view shares inbox let_in holder notices conclude resumed withdraw stop
local f = redis.call('HMGET', key_turn(turn), 'session', 'status')
local session, status = f[1], f[2]
if not session then return {'TURN_NOT_FOUND'} end
if status == 'finished' or status == 'failed' or status == 'cancelled' then return {'ALREADY', status} end
if reason == '' or reason == 'SUPERSEDED' or reason == 'STEER' then reason = 'cancelled' end
redis.call('ZREM', key_due(), turn)
return {stop_turn(session, turn, status, reason, keep, now_ms(), tonumber(keep_events)) and 'CANCELLED' or 'REQUESTED'}
