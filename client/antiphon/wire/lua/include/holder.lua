-- The fields of a lease, and its release. The whole fence is compared; an empty fence belongs to no worker. A holder
-- without a fence is about to start the session's turn in a separate process.
local FREE = {'fence', '', 'holder', '', 'lease', 0, 'turn', '', 'stop', '', 'batch', 0}
local function let_go(session)
  local holder = redis.call('HGET', key_session(session), 'holder')
  if holder and holder ~= '' then redis.call('HDEL', key_held(holder), session) end
  redis.call('HSET', key_session(session), unpack(FREE))
end

-- Returns whether the fence is in force, the stop word of a cancelled turn, or '', the holder, the last seq, and further fields.
local function holds(session, fence, ...)
  local f = redis.call('HMGET', key_session(session), 'fence', 'stop', 'holder', 'seq', ...)
  return fence ~= '' and f[1] == fence, f[2] or '', f[3] or '', f[4], {unpack(f, 5)}
end
