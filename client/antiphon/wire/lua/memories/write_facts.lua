-- Change the facts of a scope as they were read. `rest` has ids and facts, with nothing for a fact that goes.
-- Whoever holds a session of this server for a memory names both and its fence; people leave them empty.
-- @args scope version session name fence rest...
-- -> OK
-- -> CHANGED               they are not what was read: also for a repetition
-- -> SUPERSEDED            another worker has taken the session
-- @include
if fence ~= '' and redis.call('HGET', key_remembered(session), '@fence/' .. name) ~= fence then return {'SUPERSEDED'} end
local facts = key_facts(scope)
if (redis.call('HGET', facts, '@version') or '') ~= version then return {'CHANGED'} end
for i = 1, #rest, 2 do
  if rest[i + 1] == '' then
    redis.call('HDEL', facts, rest[i])
  else
    redis.call('HSET', facts, rest[i], rest[i + 1])
  end
end
if redis.call('HLEN', facts) == redis.call('HEXISTS', facts, '@version') then
  redis.call('DEL', facts)
else
  redis.call('HSET', facts, '@version', redis.call('INCR', key_fence()))
end
return {'OK'}
