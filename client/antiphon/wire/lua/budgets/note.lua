-- Note that a turn is given back because a budget is used up: a change of that budget before or after that lets it ask again.
-- `scope` is the kind of the scope and a hash of its name. The fence names the call. The first write is a
-- ZREMRANGEBYSCORE, so that it works at full memory.
-- @args session turn fence scope
-- -> NOTED                 (also for a repetition)
-- -> SUPERSEDED
-- @include holder
local KEEP_MS, now = 3600000, now_ms() -- a turn that waits notes itself again within ten minutes
if not holds(session, fence) then return {'SUPERSEDED'} end
redis.call('ZREMRANGEBYSCORE', key_unfunded(), '-inf', now - KEEP_MS)
redis.call('HSET', key_turn(turn), 'unfunded', scope)
redis.call('ZADD', key_unfunded(), now, turn)
redis.call('PEXPIRE', key_unfunded(), KEEP_MS)
return {'NOTED'}
