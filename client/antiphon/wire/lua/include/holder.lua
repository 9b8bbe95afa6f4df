-- What a lease is made of, and letting go of it. The fence is compared whole; an empty one is nobody's. A holder
-- without a fence is about to start the session's turn in a process of its own.
local function let_go(session)
  local holder = redis.call('HGET', key_session(session), 'holder')
  if holder and holder ~= '' then
    redis.call('HDEL', key_held(holder), session)
  end
  redis.call('HSET', key_session(session), 'fence', '', 'holder', '', 'lease', 0, 'turn', '', 'stop', '', 'batch', 0)
end

local function holds(session, fence)
  return fence ~= '' and redis.call('HGET', key_session(session), 'fence') == fence
end
