-- Look at a session that nobody holds: its head must be claimable, or due for a retry later.
-- A longer queue is not searched: a turn that was offered before the first entry of the queue has lost its own.
local SEARCHABLE = 1000

local function offered(turn, queue)
  if redis.call('HGET', key_rq_job(turn), 'status') ~= 'queued' then return false end
  if redis.call('LLEN', key_rq_queue(queue)) <= SEARCHABLE then
    return redis.call('LPOS', key_rq_queue(queue), turn) ~= false
  end
  local first = redis.pcall('HGET', key_turn(redis.call('LINDEX', key_rq_queue(queue), 0)), 'offered_at')
  first = type(first) == 'string' and tonumber(first)
  return not first or first <= (tonumber(redis.call('HGET', key_turn(turn), 'offered_at') or 0) or 0)
end

-- Raises what would keep a claim from the session's turn.
local function probe(session, turn, f)
  if f.session ~= session then error({err = 'The turn ' .. turn .. ' is of another session.'}, 0) end
  local seq = redis.call('HGET', key_session(session), 'seq') or ''
  if #seq > 15 or not string.find(seq, '^%d+$') then
    error({err = 'The field seq of the session is damaged.'}, 0)
  end
  redis.call('LLEN', key_journal(turn))
  redis.call('LLEN', key_history(session))
  redis.call('XLEN', key_events(session))
end

local function look(session, now, act)
  local head = redis.call('LINDEX', key_inbox(session), 0)
  if not head then
    redis.call('ZREM', key_active(), session)
    return
  end
  local f = read_turn(head)
  if not f then
    redis.call('LREM', key_inbox(session), 1, head)
    ready(session, now)
    return act(session, head, 'dropped')
  end
  probe(session, head, f)
  local status, retry_at, queue = f.status, f.retry_at, f.queue
  if cancelled_in_rq(head) then
    act(session, head, withdraw(session, head, IN_RQ, now, tonumber(keep_events)) and 'cancelled' or 'repaired')
  elseif status == 'suspended' then
    redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)
  elseif status == 'retrying' and tonumber(retry_at) > now then
    redis.call('ZADD', key_active(), retry_at, session)
  elseif status == 'queued' and offered(head, queue) then
    redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)
  else
    redis.call('LREM', key_rq_queue(queue), 0, head)
    redis.call('LREM', key_rq_intermediate(queue), 0, head)
    offer(session, head, now, true)
    act(session, head, status == 'retrying' and 'retried' or 'repaired')
  end
end
