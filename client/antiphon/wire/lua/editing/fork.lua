-- Copy a session, without its running turn, to a new id. `op` names the call. `body` is the event for the source, and
-- `branch` the new entry of its field `branches`. The first `keep` messages are copied; the last of them has the id `at`
-- and the hash `digest`. With an empty `ttl_ms` the copy is kept as long as the source.
-- @args session fork op ttl_ms session_limit keep at digest body branch names...    of the fields to copy
-- -> OK                    (also for a repetition)
-- -> CONFLICT              the history is not what the caller has read, or the session has files in a byte store by now
-- -> SESSION_EXISTS
-- -> FULL, limit           Redis has as many as this limit allows
-- -> TENANT_LIMIT, stored_bytes, how many     the tenant's files have as many bytes as it may have
-- @include publish life inbox memories cut shares files
local target = key_session(fork)
if redis.call('HGET', target, 'op') == op then return {'OK'} end
if redis.call('EXISTS', target) == 1 and not is_over(fork) then return {'SESSION_EXISTS'} end
if redis.call('ZCARD', key_sessions()) >= tonumber(session_limit) then return {'FULL', 'sessions'} end
local history, size = key_history(session), tonumber(keep)
if size > 0 and redis.sha1hex(redis.call('LINDEX', history, size - 1) or '') ~= digest then return {'CONFLICT'} end
local files, bytes = files_of(session)
if files > 0 and #places_of(session) > 0 then return {'CONFLICT'} end
local most = bytes > 0 and stored_limit(redis.call('HGET', key_session(session), 'tenant'), bytes)
if most then return {'TENANT_LIMIT', 'stored_bytes', most} end
local now = now_ms()
begin_anew(fork)
redis.call('HSET', target, 'op', op, 'created', now, 'life', life_of(now, op), 'updated', now, 'fork_of', session)
if at ~= '' then redis.call('HSET', target, 'fork_at', at) end
local lives = redis.call('EXISTS', key_session(session)) == 1 and not is_over(session)
local ttl = ttl_ms ~= '' and ttl_ms or lives and redis.call('HGET', key_session(session), 'ttl')
if ttl then redis.call('HSET', target, 'ttl', ttl) end
local values = redis.call('HMGET', key_session(session), unpack(names))
for i = 1, #names do
  if lives and values[i] then redis.call('HSET', target, names[i], values[i]) end
end
if redis.call('EXISTS', key_seq_floor()) == 1 then
  redis.call('HSET', target, 'archived', '')
  -- If the source was not yet restored from the archive, its archived history belongs to this session too.
  if redis.call('HGET', target, 'restored') ~= '1' and not redis.call('ZSCORE', key_forget(), session) then
    redis.call('HSETNX', target, 'origin', session)
  end
end
if size > 0 then redis.call('COPY', history, key_history(fork), 'REPLACE') end
redis.call('PERSIST', key_history(fork))
if redis.call('HEXISTS', target, 'media') == 1 then
  redis.call('COPY', key_media(session), key_media(fork), 'REPLACE')
  redis.call('PERSIST', key_media(fork))
  note_stored(fork, bytes)
end
if size < redis.call('LLEN', history) then cut(fork, keep) end
if size > 0 then redis.call('HSET', target, 'ends', (redis.call('HGET', target, 'first') or 0) .. ':' .. keep .. ' ') end
release_session(fork, now)
if lives then
  local branches = redis.call('HGET', key_session(session), 'branches')
  branches = branches and string.sub(branches, 1, -2) .. ',' .. branch .. '}' or '{' .. branch .. '}'
  redis.call('HSET', key_session(session), 'branches', branches)
  publish(session, now, {body})
  if redis.call('LLEN', key_inbox(session)) == 0 then release_session(session, now) end
end
return {'OK'}
