-- Add a chunk of a file to a session, which exists from the first one on. Its chunks come in their order, and the last one
-- completes it. `file` is the hash of its content, so that it is stored once. A file is counted from its first chunk on.
-- An empty `ttl_ms` changes nothing.
-- @args session op file at count size entry chunk tenant ttl_ms session_limit files_limit bytes_limit fence
-- -> STORED                the file is complete (also for a repetition, and for a file that the session has)
-- -> NEXT                  it is not: go on
-- -> AGAIN                 the session has lost earlier chunks: begin again
-- -> SUPERSEDED            the turn with this fence is not held; '' is a caller without a turn
-- -> SESSION_CLOSED
-- -> OTHER_TENANT          the session belongs to another one, or to none
-- -> FULL, limit           the session has as many files or bytes as this limit allows, or Redis as many sessions
-- -> TENANT_LIMIT, stored_bytes, how many     the tenant's files have as many bytes as it may have
-- @include publish life inbox shares files
local fields, media, begun = key_session(session), key_media(session), file .. '~'
if fence ~= '' and redis.call('HGET', fields, 'fence') ~= fence then return {'SUPERSEDED'} end
local idle = redis.call('LLEN', key_inbox(session)) == 0
if idle then begin_anew(session) end
local known = redis.call('HMGET', fields, 'created', 'tenant', 'closed', 'media', 'seq')
if tenant ~= '' and known[1] and known[2] ~= tenant then return {'OTHER_TENANT'} end
if known[3] and fence == '' then return {'SESSION_CLOSED'} end
if redis.call('HEXISTS', media, file) == 1 then return {'STORED'} end
local first = redis.call('HEXISTS', media, begun) == 0
if first then
  if at ~= '0' then return {'AGAIN'} end
  local full = no_room(session, known[1], size, session_limit, files_limit, bytes_limit)
  if full then return {'FULL', full} end
  local most = stored_limit(known[2] or tenant, size)
  if most then return {'TENANT_LIMIT', 'stored_bytes', most} end
end

local now = now_ms()
redis.call('HSET', media, file .. ':' .. at, chunk, begun, size)
if first then begin_file(session, size, op, tenant, ttl_ms, known, now) end
if idle then release_session(session, now) end
if tonumber(at) < count - 1 then return {'NEXT'} end
for n = 0, count - 1 do
  if redis.call('HEXISTS', media, file .. ':' .. n) == 0 then return {'AGAIN'} end
end
redis.call('HSET', media, file, size .. ' ' .. entry)
redis.call('HDEL', media, begun)
return {'STORED'}
