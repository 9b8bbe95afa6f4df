-- The server's clock was put back. All times to come move back with it, so that nothing waits for the same time twice.
-- Times written since the jump are already right and cannot be told from the others. Therefore no time is moved to less
-- than NEAREST_MS from now, so that a holder that has just begun has time to renew, and a webhook's keeps its whole lease.
local BACK_MS, NEAREST_MS = 1000, 20000
local MOST_DELIVERIES_MOVED = 1000 -- of a webhook; further ones come later

local function moved(at, back, now)
  return string.format('%.0f', math.max(at - back, math.min(at, now + NEAREST_MS)))
end

local function move_waits(turn, back, now)
  local n = 1
  local call = open_call(turn, n)
  while call do
    redis.call('HSET', key_turn(turn), 'wait:' .. n,
      moved(call.till, back, now) .. ' ' .. call.at_limit .. ' ' .. call.kind .. ' ' .. call.id)
    n = n + 1
    call = open_call(turn, n)
  end
end

local function move_back(session, back, now)
  local lease = tonumber(redis.call('HGET', key_session(session), 'lease')) or 0
  if lease > 0 then redis.call('HSET', key_session(session), 'lease', moved(lease, back, now)) end
  local head = redis.call('LINDEX', key_inbox(session), 0)
  local retry_at = head and tonumber(redis.call('HGET', key_turn(head), 'retry_at'))
  if retry_at then redis.call('HSET', key_turn(head), 'retry_at', moved(retry_at, back, now)) end
  if head then move_waits(head, back, now) end
end

local function move_scores(key, back, now, ...)
  local members = redis.call('ZRANGEBYSCORE', key, string.format('%.0f', now), '+inf', 'WITHSCORES', ...)
  for i = 1, #members, 2 do redis.call('ZADD', key, moved(tonumber(members[i + 1]), back, now), members[i]) end
end

-- Called by every reaper several times a second, so that `clock` is the time until then.
local function follow_clock(now)
  local last = tonumber(redis.call('GET', key_clock()) or now) or now
  redis.call('SET', key_clock(), string.format('%.0f', now))
  local back = last - now
  if back < BACK_MS then return end
  for _, key in ipairs({key_active(), key_due(), key_aside(), key_webhooks(), key_pushes()}) do move_scores(key, back, now) end
  for _, name in ipairs(redis.call('ZRANGE', key_webhooks(), 0, -1)) do
    guarded(move_scores, key_deliveries(name), back, now, 'LIMIT', 0, MOST_DELIVERIES_MOVED)
  end
  for _, session in ipairs(redis.call('ZRANGE', key_active(), 0, -1)) do guarded(move_back, session, back, now) end
  for _, turn in ipairs(redis.call('ZRANGE', key_aside(), 0, -1)) do guarded(move_waits, turn, back, now) end
end
