-- Read a chunk of a file of a session, and its entry. `names` are those that it may have under several keys.
-- @args session at names...
-- -> FOUND, entry, chunk
-- -> PLACED, entry, place   its content is in a byte store
-- -> MISSING
-- @include
for _, name in ipairs(names) do
  local found = redis.call('HMGET', key_media(session), name, name .. ':' .. at)
  local place = found[1] and string.match(found[1], '^%d+@(%S+)')
  local entry = found[1] and string.gsub(found[1], '^%S+ ', '')
  if place then return {'PLACED', entry, place} end
  if entry and found[2] then return {'FOUND', entry, found[2]} end
end
return {'MISSING'}
