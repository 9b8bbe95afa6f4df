-- Erase what turns said of deleted sessions that do not list them (`erasing`), or all turns of a tenant that have ended: some
-- keys at a time, from the cursor '0' on. Whoever has searched all keys removes the sessions that were deleted before. A
-- worker, with an empty cursor, searches when it is time: then a search has died, or none has been made since a deletion.
-- The first write is a ZREM of nothing, so that it works at full memory.
-- @args tenant began cursor count
-- -> ERASED, the next cursor ('0': that was all), how many, when the search began
-- -> IDLE                  there is nothing to search for now
-- @include rq_view erasing erase
local SEARCH_MS = 120000 -- a search that makes no progress for so long has died
local now, erased, stem = now_ms(), 0, key_turn('')
if began == '' then began = string.format('%.0f', now) end
if cursor == '' then
  local at = redis.call('HGET', key_erasing(), '')
  if not at or (tonumber(at) or 0) > now then return {'IDLE'} end
  cursor = '0'
end
redis.call('ZREM', key_sessions(), '')
local marked = tenant == '' and redis.call('EXISTS', key_erasing()) == 1
if marked then redis.call('HSET', key_erasing(), '', now + SEARCH_MS) end
local page = redis.call('SCAN', cursor, 'MATCH', string.gsub(stem, '[%*%?%[%]%^\\-]', '\\%0') .. '*', 'COUNT', count)
for _, key in ipairs(page[2]) do
  local f = redis.pcall('HMGET', key, 'session', 'tenant', 'created')
  local turn = string.sub(key, #stem + 1)
  local wanted = f[1] and f[2] == tenant
  if f[1] and tenant == '' then wanted = was_deleted(f[1], f[2], f[3], turn) end
  if wanted then
    if tenant == '' then end_outside(turn, f[2]) end
    if erase_turn(f[1], turn, now) then erased = erased + 1 end
  end
end
if marked and page[1] == '0' then
  local names = redis.call('HGETALL', key_erasing())
  local left = #names / 2 - 1
  for i = 1, #names, 2 do
    if names[i] ~= '' and (tonumber(names[i + 1]) or 0) < tonumber(began) then
      redis.call('HDEL', key_erasing(), names[i])
      left = left - 1
    end
  end
  if left <= 0 then redis.call('DEL', key_erasing()) end
end
return {'ERASED', page[1], erased, began}
