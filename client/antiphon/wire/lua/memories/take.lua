-- Take sessions with turns that a memory is to index, or to forget: for `lease_ms` no other worker does. A call that is
-- repeated after a lost answer takes other sessions; the first ones are free again when their lease is over.
-- @args name lease_ms count
-- -> TAKEN, fence, sessions...    each: session, tenant, parent, the turns to index, cut ('' for none), fields (of a cut one); or session, damage
-- @include damage
local now, fence = now_ms(), nil
local found = {}
for _, session in ipairs(redis.call('ZRANGEBYSCORE', key_unindexed(name), '-inf', now, 'LIMIT', 0, count)) do
  fence = fence or redis.call('INCR', key_fence())
  redis.call('ZADD', key_unindexed(name), now + lease_ms, session)
  local done, why = guarded(function()
    local f = redis.call('HMGET', key_remembered(session), '@new/' .. name, '@cut/' .. name, '@tenant')
    redis.call('HSET', key_remembered(session), '@fence/' .. name, fence)
    local s = redis.call('HMGET', key_session(session), 'tenant', 'parent')
    found[#found + 1] = {session, s[1] or f[3] or '', s[2] or '', f[1] or '', f[2] or '',
      f[2] and redis.call('HGETALL', key_remembered(session)) or {}}
  end)
  if not done then found[#found + 1] = {session, why} end
end
return {'TAKEN', string.format('%.0f', fence or 0), unpack(found)}
