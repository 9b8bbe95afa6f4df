-- Remove files of a session, also those that were only begun. The first write is an HDEL, so that it works at full memory.
-- @args session names...
-- -> DROPPED, how many, places...   of their contents in a byte store
-- @include shares files
local files, bytes, dropped, places = 0, 0, 0, {}
for _, name in ipairs(names) do
  local media, at = key_media(session), 0
  local entry, begun = redis.call('HGET', media, name), redis.call('HGET', media, name .. '~')
  if entry or begun then
    while redis.call('HDEL', media, name .. ':' .. at) == 1 do at = at + 1 end
    for _, field in ipairs(begun and redis.call('HKEYS', media) or {}) do -- calls that met may have left gaps
      if string.sub(field, 1, #name + 1) == name .. ':' then redis.call('HDEL', media, field) end
    end
    redis.call('HDEL', media, name, name .. '~')
    files, bytes = files_of(session)
    count_files(session, files - 1, bytes - string.match(entry or begun, '^%d+'))
    dropped = dropped + 1
    for _, one in ipairs({entry or '', begun or ''}) do places[#places + 1] = string.match(one, '^%d+@(%S+)') end
  end
end
return {'DROPPED', dropped, unpack(places)}
