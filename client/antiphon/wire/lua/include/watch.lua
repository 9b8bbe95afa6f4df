-- Look at a suspended turn: an event that was sent reaches the calls that wait for it, and the calls whose time is over are decided, or end the turn. RQ's record is put right. Returns
-- when to look again, or nil if the turn no longer waits: when a sleep or the time of a batch is over, and where an event or a person is waited
-- for, after a quarter of the time that it has been suspended.
local BY_LIMIT = ',"reason":"Nobody decided within the time limit."}'
local NOT_DECIDED = 'Nobody decided about a tool call of this turn within its time limit.'

local function watch(session, turn, now, act)
  local n, call, asleep = 1, open_call(turn, 1), true
  while call do
    if call.kind == 'event' and not decision_of(turn, n) then receive_kept(session, turn, n, call, now) end
    if call.till <= now and not decision_of(turn, n) then
      if call.at_limit == 'fail' then
        stand_up(session, turn)
        give_up(session, turn, now, 'not_decided', NOT_DECIDED)
        return act(session, turn, 'not_decided')
      end
      local json = redis.call('HGET', key_turn(turn), 'limit:' .. n)
        or '{"call_id":' .. json_text(call.id) .. ',"kind":"' .. call.at_limit .. '"' .. BY_LIMIT
      write_decision(turn, n, 'limit', json, now)
    end
    if call.kind ~= 'sleep' and call.kind ~= 'batch' and not decision_of(turn, n) then asleep = false end
    n = n + 1
    call = open_call(turn, n)
  end
  local soonest, _, told = decided(turn)
  if not soonest then
    resume(session, turn, now, told)
    return act(session, turn, 'resumed')
  end
  if redis.call('HGET', key_rq_job(turn), 'status') ~= 'deferred' then rq_view(turn, 'suspended', now) end
  local since = asleep and 0 or tonumber(redis.call('HGET', key_turn(turn), 'suspended_at')) or now
  return math.min(soonest, now + math.max(LOOK_AGAIN_MS, math.min(LONGEST_UNSEEN_MS, math.floor((now - since) / 4))))
end
