-- Return an unfinished turn. A drain counts nothing; an error counts one and may ask for a delay.
-- The fence names the call. First write is a ZREM, so that it works at full memory.
-- @args session turn fence cause delay_ms reason code
-- -> OK
-- -> SUPERSEDED
-- @include publish rq_view inbox holder retry
if redis.call('HGET', key_turn(turn), 'given_back') == fence then return {'OK'} end
if not holds(session, fence) then return {'SUPERSEDED'} end
local now, delay = now_ms(), tonumber(delay_ms)
redis.call('ZREM', key_active(), session)
redis.call('HSET', key_turn(turn), 'given_back', fence)
let_go(session)
retry(session, turn, now, delay, reason, code)
redis.call('HINCRBY', key_turn(turn), cause == 'error' and 'errors' or 'attempt', cause == 'error' and 1 or -1)
return {'OK'}
