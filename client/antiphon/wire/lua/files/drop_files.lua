-- Remove files of a session. The first write is an HDEL, so that it works at full memory.
-- @args session names...
-- -> DROPPED, how many
-- @include files
local files, bytes, dropped = 0, 0, 0
for _, name in ipairs(names) do
  local entry, at = redis.call('HGET', key_media(session), name), 0
  if entry then
    while redis.call('HDEL', key_media(session), name .. ':' .. at) == 1 do at = at + 1 end
    redis.call('HDEL', key_media(session), name)
    files, bytes = files_of(session)
    count_files(session, files - 1, bytes - string.match(entry, '^%d+'))
    dropped = dropped + 1
  end
end
return {'DROPPED', dropped}
