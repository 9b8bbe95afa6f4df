-- Put the archived part of a session before what it has now. The field `restored` says that this was done.
-- The fence is that of the holder, or empty if the session has no holder. The old values of the fields are what the caller
-- has read. With a reason to `refuse`, the turns accepted until now will fail; with 'tenant', their history is dropped.
-- @args session fence refuse field_count rest...    fields as name, old, new; then messages
-- -> RESTORED              (also for a repetition)
-- -> FORGOTTEN             it was deleted: what the store has is not this session's
-- -> CONFLICT              the session is not what the caller has read
-- -> SUPERSEDED            it has another holder, or is gone
-- @include
local fields, history = key_session(session), key_history(session)
local known = redis.call('HMGET', fields, 'restored', 'fence', 'seq')
if known[1] == '1' then return {'RESTORED'} end
if redis.call('EXISTS', fields) == 0 or (known[2] or '') ~= fence then return {'SUPERSEDED'} end
if redis.call('ZSCORE', key_forget(), session) then
  redis.call('HSET', fields, 'restored', '1', 'archived', '')
  return {'FORGOTTEN'}
end
local last_field = 3 * field_count
for i = 1, last_field, 3 do
  if (redis.call('HGET', fields, rest[i]) or '') ~= rest[i + 1] then return {'CONFLICT'} end
end
redis.call('HSET', fields, 'restored', '1', 'archived', '')
for i = 1, last_field, 3 do
  if rest[i + 2] == '' then
    redis.call('HDEL', fields, rest[i])
  else
    redis.call('HSET', fields, rest[i], rest[i + 2])
  end
end
if refuse ~= '' then redis.call('HSET', fields, 'refused', (known[3] or '0') .. ':' .. refuse) end
if refuse == 'tenant' then redis.call('DEL', history) end
for i = #rest, last_field + 1, -1 do redis.call('LPUSH', history, rest[i]) end
local life = redis.call('PTTL', fields)
if life > 0 then redis.call('PEXPIRE', history, math.max(1, life - 3600000)) end
if fence == '' then redis.call('ZADD', key_ending(), now_ms(), session) end
return {'RESTORED'}
