-- Workers have a revision again: the turns that wait for it are queued. Takes `count` of them; repeat it until it takes
-- fewer. `missing` is the revision, as agent@revision.
-- @args missing count
-- -> WOKEN, number
-- @include rq_view shares inbox damage
local now = now_ms()

local function wake(turn)
  local session, status, code = unpack(redis.call('HMGET', key_turn(turn), 'session', 'status', 'retry_code'))
  if status == 'retrying' and code == 'revision_unavailable' and redis.call('LINDEX', key_inbox(session), 0) == turn then
    ready(session, now, true)
  end
end

local found = redis.call('SPOP', key_missing(missing), count)
for _, turn in ipairs(found) do guarded(wake, turn) end
return {'WOKEN', #found}
