-- Keep what a message to a turn that waits has answered, under the message's id: a repetition answers nothing else. `done` is 1
-- when all of it is answered.
-- @args turn message names done
-- -> KEPT, names, done     what the message answered first
-- -> TURN_NOT_FOUND        also for a deleted one
-- @include
local f = redis.call('HMGET', key_turn(turn), 'session', 'deleted', 'answered:' .. message)
if not f[1] or f[2] then return {'TURN_NOT_FOUND'} end
if f[3] then names = string.sub(f[3], 3) end
if f[3] and string.sub(f[3], 1, 1) == '1' then done = '1' end
redis.call('HSET', key_turn(turn), 'answered:' .. message, done .. ' ' .. names)
return {'KEPT', names, done}
