-- Renew the leases of one worker's sessions. A running turn that was cancelled with RQ's tools is told to stop.
-- The first write is a ZREM, so that it works at full memory.
-- @args worker lease_ms leases...    session and fence in turn
-- -> RENEWED, answers      per session: '' (yours), a stop word (yours, but stop), or 'SUPERSEDED', also where its data are damaged
-- @include cancelled damage
local now, answers = now_ms(), {}

local function renew(session, fence)
  local found = redis.call('HMGET', key_session(session), 'fence', 'stop', 'turn')
  if found[1] ~= fence or fence == '' then return end
  redis.call('ZREM', key_active(), session)
  redis.call('ZADD', key_active(), now + lease_ms, session)
  redis.call('HSET', key_session(session), 'lease', now + lease_ms)
  local stop = found[2] or ''
  if stop == '' and cancelled_in_rq(found[3]) then stop = stop_cancelled(session, found[3]) end
  answers[#answers] = stop
end

for i = 1, #leases, 2 do
  answers[#answers + 1] = 'SUPERSEDED'
  guarded(renew, leases[i], leases[i + 1])
end
if #answers > 0 then redis.call('PEXPIRE', key_held(worker), 3600000) end
return {'RENEWED', answers}
