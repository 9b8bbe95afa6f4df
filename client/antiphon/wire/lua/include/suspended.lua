-- A turn that waits for decisions, for the end of sleeps, or for events. Of its open calls it has, numbered from 1, the fields `wait:<n>` ("<until> <at limit>
-- <kind> <id>"), with encryption `limit:<n>` (the decision of its time limit) and, once decided, `decision:<n>` ("<op> <JSON>"). `suspended` lists it. One that its session's next turns
-- pass by has left the inbox: `aside` says when it is checked, and the session counts it in its field `aside`. `waited` is how many ms it was suspended.
local function open_call(turn, n)
  local wait = redis.call('HGET', key_turn(turn), 'wait:' .. n)
  if not wait then return nil end
  local till, at_limit, kind, id = string.match(wait, '^(%d+) (%a+) (%a+) (.*)$')
  return {till = tonumber(till), at_limit = at_limit, kind = kind, id = id}
end

local function decision_of(turn, n)
  local op, decision = string.match(redis.call('HGET', key_turn(turn), 'decision:' .. n) or '', '^(%S+) (.*)$')
  return decision, op
end

local function decidable(kind) return kind == 'approval' or kind == 'tool' end

-- When the next call's time is over, or nil if all are decided; the decisions, in the order of the calls; those that somebody made; what calls have received.
local function decided(turn)
  local soonest, made, told, received, n = nil, {}, {}, {}, 1
  local call = open_call(turn, n)
  while call do
    local decision = decision_of(turn, n)
    if decision then
      made[#made + 1] = decision
      if decidable(call.kind) then told[#told + 1] = decision end
      if call.kind == 'event' then received[#received + 1] = {call.id, redis.call('HGET', key_turn(turn), 'got:' .. n)} end
    else
      soonest = math.min(soonest or call.till, call.till)
    end
    n = n + 1
    call = open_call(turn, n)
  end
  return soonest, made, told, received
end

local function write_decision(turn, n, op, json, now)
  redis.call('HSET', key_turn(turn), 'decision:' .. n,
    op .. ' ' .. string.sub(json, 1, -2) .. string.format(',"at":%.0f}', now))
end

local function forget_calls(turn)
  local n = 1
  while redis.call('HDEL', key_turn(turn), 'wait:' .. n, 'decision:' .. n, 'limit:' .. n, 'event:' .. n, 'after:' .. n, 'got:' .. n) > 0 do n = n + 1 end
  redis.call('HDEL', key_turn(turn), 'calls', 'waits', 'suspended_at')
end

-- The turn no longer waits. One that was passed by enters the inbox again, behind the current turn. Returns whether it is
-- the head.
local function stand_up(session, turn)
  redis.call('ZREM', key_suspended(), turn)
  local head = redis.call('LINDEX', key_inbox(session), 0)
  if redis.call('ZREM', key_aside(), turn) == 0 then return head == turn end
  redis.call('HINCRBY', key_session(session), 'aside', -1)
  if not head then
    redis.call('RPUSH', key_inbox(session), turn)
    return true
  end
  redis.call('LINSERT', key_inbox(session), 'AFTER', head, turn)
  redis.call('HSET', key_turn(turn), 'status', 'waiting')
end

-- All open calls are decided: any worker may continue the turn.
local function resume(session, turn, now, told)
  local head, f = stand_up(session, turn), redis.call('HMGET', key_turn(turn), 'run', 'step', 'suspended_at', 'waited')
  redis.call('HSET', key_turn(turn), 'waited',
    string.format('%.0f', (tonumber(f[4] or 0) or 0) + now - (tonumber(f[3] or now) or now)))
  publish(session, now, {event_body('turn_resumed', session, turn, f[1],
    ',"step":' .. (tonumber(f[2]) or 1) - 1 .. ',"decisions":[' .. table.concat(told, ',') .. ']')})
  if head then return ready(session, now, true) end
  rq_view(turn, 'waiting', now)
end
