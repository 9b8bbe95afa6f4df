-- A session is indexed as it was when it was taken: `new` are the turns that were to be indexed then, `cut` what it had lost.
-- `rest` has turns and what now stands in the index of each; nothing for a turn that was forgotten.
-- @args name session fence new cut rest...
-- -> OK
-- -> SUPERSEDED, turns...  another worker has taken it. Documents of these turns, which are not remembered, must go
-- -> UNDECIDED             another worker has taken it, and may have written the same: ask again
-- @include
local fields, known = key_remembered(session), name .. '/'
if redis.call('HGET', fields, '@fence/' .. name) ~= fence then
  local unknown = {}
  for i = 1, #rest, 2 do
    if redis.call('HEXISTS', fields, known .. rest[i]) == 0 then unknown[#unknown + 1] = rest[i] end
    if string.find(redis.call('HGET', fields, '@new/' .. name) or '', rest[i] .. ' ', 1, true) then return {'UNDECIDED'} end
  end
  return {'SUPERSEDED', unpack(unknown)}
end
for i = 1, #rest, 2 do
  if rest[i + 1] == '' then
    redis.call('HDEL', fields, known .. rest[i])
  else
    redis.call('HSET', fields, known .. rest[i], rest[i + 1])
  end
end
redis.call('HDEL', fields, '@fence/' .. name)
local left = string.sub(redis.call('HGET', fields, '@new/' .. name) or '', #new + 1) -- turns are only added to its end
if left == '' then
  redis.call('HDEL', fields, '@new/' .. name)
else
  redis.call('HSET', fields, '@new/' .. name, left)
end
if (redis.call('HGET', fields, '@cut/' .. name) or '') == cut then redis.call('HDEL', fields, '@cut/' .. name) end
if left ~= '' or redis.call('HEXISTS', fields, '@cut/' .. name) == 1 then
  redis.call('ZADD', key_unindexed(name), now_ms(), session)
else
  redis.call('ZREM', key_unindexed(name), session)
end
if redis.call('HLEN', fields) <= 1 + redis.call('HEXISTS', fields, '@tenant') then redis.call('DEL', fields) end -- nothing but names
return {'OK'}
