-- What a new turn does to the one before it, as its caller asks with `if_busy`: interrupt, rollback or steer.
local INTERRUPTED_KEEP_EVENTS = 10000

-- The first turn of the inbox that is not being stopped already: it runs, or is the next to run. With its status and its
-- place; nil where there is none.
local function current_turn(session)
  for place, turn in ipairs(redis.call('LRANGE', key_inbox(session), 0, -1)) do
    local f = redis.call('HMGET', key_turn(turn), 'cancel', 'status')
    if not f[1] then return {turn = turn, status = f[2], position = place - 1} end
  end
end

-- Whom the new turn goes directly behind, because it stops it.
local function stopped_by(session, busy)
  if busy == 'interrupt' or busy == 'rollback' then return current_turn(session) end
end

-- Of an interrupted turn all that was said stays, and of one that has not begun its question: a worker ends it.
local function interrupt(session, current, turn, now)
  local reason = 'interrupted by turn ' .. turn
  if current.status == 'running' or current.status == 'suspended' then
    return stop_turn(session, current.turn, current.status, reason, 'partial', now, INTERRUPTED_KEEP_EVENTS)
  end
  redis.call('HSET', key_turn(current.turn), 'cancel', reason, 'keep', 'partial')
  if current.position == 0 then
    redis.call('LREM', key_rq_queue(redis.call('HGET', key_turn(current.turn), 'queue')), 0, current.turn)
    offer(session, current.turn, now, true)
  end
end

-- The turn that runs takes the new turn's input before its next model call, unless it ends first or is being stopped.
local function steer(session, turn)
  local head = redis.call('LINDEX', key_inbox(session), 0)
  if head == turn or redis.call('HEXISTS', key_turn(head), 'cancel') == 1 then return end
  redis.call('HSET', key_turn(turn), 'steers', head)
  redis.call('HSET', key_session(session), 'steer', head)
end

-- Do it, now that the new turn stands in the inbox.
local function act_on(session, current, turn, busy, now)
  if busy == 'steer' then
    steer(session, turn)
  elseif current and busy == 'interrupt' then
    interrupt(session, current, turn, now)
  elseif current then
    stop_turn(session, current.turn, current.status, 'rolled back for turn ' .. turn, 'nothing', now,
      INTERRUPTED_KEEP_EVENTS)
  end
end
