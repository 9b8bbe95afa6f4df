-- What memories hold of a session. `remembered` has a field for each turn that stands in an index (`<memory>/<turn>`), the
-- turns that are to be indexed (`@new/<memory>`), and how often the session lost messages since (`@cut/<memory>`).
-- Damage of these keys keeps no turn from its end, and no session from being deleted.
local function to_index(session, turn, memories, now)
  local fields = key_remembered(session)
  local names = redis.pcall('HGET', fields, '@names') or ''
  if type(names) ~= 'string' then return end
  for name in string.gmatch(memories, '%S+') do
    if not string.find(' ' .. names, ' ' .. name .. ' ', 1, true) then names = names .. name .. ' ' end
    redis.call('HSET', fields, '@new/' .. name, (redis.call('HGET', fields, '@new/' .. name) or '') .. turn .. ' ')
    redis.pcall('ZADD', key_unindexed(name), 'NX', now, session)
  end
  redis.call('HSET', fields, '@names', names)
  local tenant = redis.call('HGET', key_session(session), 'tenant')
  if tenant then redis.call('HSET', fields, '@tenant', tenant) end -- the session may expire before it is indexed
end

-- A session was deleted or lost messages: nothing of it is recalled until an indexer has looked which turns are left.
local function unlearn(session, now)
  local names = redis.pcall('HGET', key_remembered(session), '@names')
  if type(names) ~= 'string' then return end
  for name in string.gmatch(names, '%S+') do
    redis.call('HINCRBY', key_remembered(session), '@cut/' .. name, 1)
    redis.pcall('ZADD', key_unindexed(name), 'NX', now, session)
  end
end
