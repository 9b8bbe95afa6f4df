-- Note a file whose content is in a byte store. With an empty `entry`, before it is put there: the file counts from then on, and
-- its place is named, so that a process that removes contents without a file spares it. With its entry afterwards, which completes it.
-- The same content that is put twice has one place. `root` begins the places of this cell: that of the first call is kept.
-- `place` ends the place of this call, and is the whole of it with an entry. An empty `ttl_ms` changes nothing.
-- @args session op file size entry place root tenant ttl_ms session_limit files_limit bytes_limit fence
-- -> SEND, place     put the content there, and come again with this place
-- -> STORED                the file is complete (also for a repetition, and for a file that the session has)
-- -> AGAIN                 the session has lost the place in the meantime: begin again
-- -> SUPERSEDED            the turn with this fence is not held; '' is a caller without a turn
-- -> SESSION_CLOSED
-- -> OTHER_TENANT          the session belongs to another one, or to none
-- -> FULL, limit           the session has as many files or bytes as this limit allows, or Redis as many sessions
-- -> TENANT_LIMIT, stored_bytes, how many     the tenant's files have as many bytes as it may have
-- @include publish life inbox shares files
local fields, media, mark = key_session(session), key_media(session), file .. '~'
if fence ~= '' and redis.call('HGET', fields, 'fence') ~= fence then return {'SUPERSEDED'} end
local idle = redis.call('LLEN', key_inbox(session)) == 0
if idle then begin_anew(session) end
local known = redis.call('HMGET', fields, 'created', 'tenant', 'closed', 'media', 'seq')
if tenant ~= '' and known[1] and known[2] ~= tenant then return {'OTHER_TENANT'} end
if known[3] and fence == '' then return {'SESSION_CLOSED'} end
if redis.call('HEXISTS', media, file) == 1 then return {'STORED'} end
local begun = redis.call('HGET', media, mark)
local placed, now = begun and string.match(begun, '@(%S+)$'), now_ms()
if entry ~= '' then
  if placed ~= place then return {'AGAIN'} end
  redis.call('HSET', media, file, size .. '@' .. place .. ' ' .. entry)
  local at = 0 -- another call may have begun to store chunks
  while redis.call('HDEL', media, file .. ':' .. at) == 1 do at = at + 1 end
  redis.call('HDEL', media, mark)
  if idle then release_session(session, now) end
  return {'STORED'}
end
local full = not begun and no_room(session, known[1], size, session_limit, files_limit, bytes_limit)
if full then return {'FULL', full} end
local most = not begun and stored_limit(known[2] or tenant, size)
if most then return {'TENANT_LIMIT', 'stored_bytes', most} end
redis.call('SET', key_byte_root(), root, 'NX')
placed = placed or redis.call('GET', key_byte_root()) .. '/' .. place
redis.call('HSET', media, mark, size .. '@' .. placed)
if not begun then begin_file(session, size, op, tenant, ttl_ms, known, now) end
if idle then release_session(session, now) end
return {'SEND', placed}
