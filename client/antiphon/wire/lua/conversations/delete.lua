-- Delete a conversation of pydantic-ai that has the revision that the caller has read, with the entries that no
-- conversation reaches that was forked from it or that it was forked from.
-- @args conversation expected
-- -> DELETED
-- -> CONFLICT              another revision is stored, or none
-- @include conversations
local fields = key_pydantic_record(conversation)
local stored = redis.call('HMGET', fields, 'revision', 'family', 'scope', 'head', 'branches')
if stored[1] ~= expected then return {'CONFLICT'} end
local family, used = stored[2], {}
redis.call('DEL', fields)
redis.call('SREM', key_pydantic_family(family), conversation)
redis.call('ZREM', key_pydantic_index(), conversation)
redis.call('ZREM', key_pydantic_scope(stored[3]), conversation)
for _, other in ipairs(redis.call('SMEMBERS', key_pydantic_family(family))) do
  local f = redis.call('HMGET', key_pydantic_record(other), 'family', 'head', 'branches')
  if f[1] == family then
    used = reached(f[2] .. '\n' .. f[3], used)
  else
    redis.call('SREM', key_pydantic_family(family), other) -- it has expired
  end
end
for entry in pairs(reached(stored[4] .. '\n' .. stored[5], {})) do
  if not used[entry] then redis.call('DEL', key_pydantic_entry(entry)) end
end
return {'DELETED'}
