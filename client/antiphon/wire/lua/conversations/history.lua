-- The last entries of a history of pydantic-ai, the newest one first: all of them for `limit` ''.
-- @args head limit
-- -> ENTRIES, entries...   each: id, parent, data
-- -> MISSING, id           an entry is not there
-- -> CIRCLE                an entry is named again by one that it comes before
-- @include
local found, entry, count, seen = {'ENTRIES'}, head, 0, {}
while entry ~= '' and (limit == '' or count < tonumber(limit)) do
  local f = redis.call('HMGET', key_pydantic_entry(entry), 'parent', 'data')
  if not f[1] then return {'MISSING', entry} end
  if seen[entry] then return {'CIRCLE'} end
  seen[entry] = true
  found[#found + 1] = {entry, f[1], f[2]}
  entry, count = f[1], count + 1
end
return found
