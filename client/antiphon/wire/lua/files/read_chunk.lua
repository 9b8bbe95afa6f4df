-- Read a chunk of a file of a session, and its entry. `names` are those that it may have under several keys.
-- @args session at names...
-- -> FOUND, entry, chunk
-- -> MISSING
-- @include
for _, name in ipairs(names) do
  local found = redis.call('HMGET', key_media(session), name, name .. ':' .. at)
  if found[1] and found[2] then return {'FOUND', string.gsub(found[1], '^%d+ ', ''), found[2]} end
end
return {'MISSING'}
