-- Check a session without a holder: its head must be claimable, or due for a retry later.
-- A longer queue is not searched. There, a turn that was offered before the queue's first entry has lost its own entry.
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

-- A turn that waits in line for its share is let in where nothing else has done so. The first ones of a line also look
-- whether all that counts for their tenant's limit still goes on.
local FIRST_IN_LINE = 10

local function place_in_line(turn, f)
  local share = share_of(f.tenant, f.priority)
  return share and redis.call('ZRANK', key_line(f.queue, share), turn)
end

local function look_at_line(place, f, now)
  if place < FIRST_IN_LINE and not has_room(f.tenant) then forget_ended(f.tenant) end
  let_in(f, now)
end

-- The same for the line of its user. Without a limit any more, the turn joins the tenant's line.
local FLIES = {queued = true, waiting = true, running = true}
local function is_in_line_of_user(turn, f)
  return f.tenant and f.user and redis.call('ZSCORE', key_user_line(hash_of_user(f.tenant, f.user)), turn)
end

local function look_at_user(turn, f, now)
  local whose = hash_of_user(f.tenant, f.user)
  local places, line = key_user_places(whose), key_user_line(whose)
  if redis.call('ZRANK', line, turn) < FIRST_IN_LINE then
    for _, other in ipairs(redis.call('SMEMBERS', places)) do
      if not FLIES[redis.pcall('HGET', key_turn(other), 'status')] then redis.call('SREM', places, other) end
    end
  end
  if limit_of(f.tenant, 'user_in_flight') then return let_in(f, now) end
  redis.call('ZREM', line, turn)
  offer(f.session, turn, now)
end

-- Raises the error that would stop a claim of the session's turn.
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

local function look(session, now, act) -- @often
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
    local next_at = watch(session, head, now, act)
    if next_at then redis.call('ZADD', key_active(), next_at, session) end
  elseif status == 'retrying' and tonumber(retry_at) > now then
    redis.call('ZADD', key_active(), retry_at, session)
  elseif status == 'waiting' and place_in_line(head, f) then
    redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)
    look_at_line(place_in_line(head, f), f, now)
  elseif status == 'waiting' and is_in_line_of_user(head, f) then
    redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)
    look_at_user(head, f, now)
  elseif status == 'queued' and offered(head, queue) then
    redis.call('HDEL', key_turn(head), 'lacking') -- the workers that had what it needs may have gone
    redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)
  else
    redis.call('LREM', key_rq_queue(queue), 0, head)
    redis.call('LREM', key_rq_intermediate(queue), 0, head)
    offer(session, head, now, true)
    act(session, head, status == 'retrying' and 'retried' or 'repaired')
  end
end
