-- Let a memory index what the one that it replaces has, some keys at a time. It is `ready` once it has had it all.
-- @args name replaced count
-- -> READY
-- -> MORE                  call again
-- @include memories
local state = key_taking_over(name)
local cursor, scanned, ready = unpack(redis.call('HMGET', state, 'cursor', 'scanned', 'ready'))
if ready then return {'READY'} end
if scanned then
  if redis.call('EXISTS', key_unindexed(name)) == 1 then return {'MORE'} end
  redis.call('HSET', state, 'ready', 1)
  return {'READY'}
end
local now, stem = now_ms(), key_remembered('')
local page = redis.call('SCAN', cursor or '0', 'MATCH', stem .. '*', 'COUNT', count)
for _, key in ipairs(page[2]) do
  local session, new = string.sub(key, #stem + 1), nil
  local fields = redis.pcall('HKEYS', key)
  for _, field in ipairs(fields.err and {} or fields) do
    local turn = string.sub(field, 1, #replaced + 1) == replaced .. '/' and string.sub(field, #replaced + 2)
    new = new or redis.call('HGET', key, '@new/' .. name) or ''
    if turn and redis.call('HEXISTS', key, name .. '/' .. turn) == 0 and not string.find(new, turn .. ' ', 1, true) then
      to_index(session, turn, name, now)
    end
  end
end
redis.call('HSET', state, 'cursor', page[1])
if page[1] == '0' then redis.call('HSET', state, 'scanned', 1) end
return {'MORE'}
