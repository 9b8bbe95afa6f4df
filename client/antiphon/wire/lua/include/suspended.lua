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

local function forget_calls(turn)
  local n = 1
  while redis.call('HDEL', key_turn(turn), 'wait:' .. n, 'decision:' .. n, 'limit:' .. n, 'event:' .. n, 'after:' .. n, 'got:' .. n) > 0 do n = n + 1 end
  redis.call('HDEL', key_turn(turn), 'calls', 'waits', 'suspended_at', 'missed_at')
end
