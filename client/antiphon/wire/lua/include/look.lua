-- Look at a session that nobody holds: its head must be claimable, or due for a retry later.
-- A longer queue is not searched: a turn that was offered before the first entry of the queue has lost its own.
local SEARCHABLE = 1000

local function offered(turn, queue)
  if redis.call('HGET', key_rq_job(turn), 'status') ~= 'queued' then return false end
  if redis.call('LLEN', key_rq_queue(queue)) <= SEARCHABLE then
    return redis.call('LPOS', key_rq_queue(queue), turn) ~= false
  end
  local first = redis.call('HGET', key_turn(redis.call('LINDEX', key_rq_queue(queue), 0)), 'offered_at')
  return not first or tonumber(first) <= tonumber(redis.call('HGET', key_turn(turn), 'offered_at') or 0)
end

local function look(session, now, act)
  local head = redis.call('LINDEX', key_inbox(session), 0)
  if not head then
    redis.call('ZREM', key_active(), session)
    return
  end
  local f = redis.call('HMGET', key_turn(head), 'status', 'retry_at', 'queue')
  if not f[1] then
    redis.call('LREM', key_inbox(session), 1, head)
    ready(session, now)
    act(session, head, 'dropped')
  elseif cancelled_in_rq(head) then
    act(session, head, withdraw(session, head, IN_RQ, now, tonumber(keep_events)) and 'cancelled' or 'repaired')
  elseif f[1] == 'suspended' then
    redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)
  elseif f[1] == 'retrying' and tonumber(f[2]) > now then
    redis.call('ZADD', key_active(), f[2], session)
  elseif f[1] == 'queued' and offered(head, f[3]) then
    redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)
  else
    redis.call('LREM', key_rq_queue(f[3]), 0, head)
    redis.call('LREM', key_rq_intermediate(f[3]), 0, head)
    offer(session, head, now, true)
    act(session, head, f[1] == 'retrying' and 'retried' or 'repaired')
  end
end
