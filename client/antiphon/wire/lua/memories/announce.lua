-- Before something is written of these turns: `rest` has each with where that will stand. If the holder dies behind its write
-- and the session is deleted, the next one finds it.
-- @args name session fence rest...
-- -> OK
-- -> SUPERSEDED            another worker has taken it: nothing is to be written
-- @include
local fields = key_remembered(session)
if redis.call('HGET', fields, '@fence/' .. name) ~= fence then return {'SUPERSEDED'} end
for i = 1, #rest, 2 do redis.call('HSETNX', fields, name .. '/' .. rest[i], rest[i + 1]) end
return {'OK'}
