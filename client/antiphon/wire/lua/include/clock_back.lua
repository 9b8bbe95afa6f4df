-- The server's clock was put back: what is to come moves with it, so that nothing waits for the time to pass twice.
local BACK_MS = 1000

local function move_back(session, ms)
  if (tonumber(redis.call('HGET', key_session(session), 'lease')) or 0) > 0 then
    redis.call('HINCRBY', key_session(session), 'lease', -ms)
  end
  local head = redis.call('LINDEX', key_inbox(session), 0)
  if head and redis.call('HEXISTS', key_turn(head), 'retry_at') == 1 then
    redis.call('HINCRBY', key_turn(head), 'retry_at', -ms)
  end
end

-- Called by every reaper several times a second, so that `clock` is the time until then.
local function follow_clock(now)
  local last = tonumber(redis.call('GET', key_clock()) or now) or now
  redis.call('SET', key_clock(), string.format('%.0f', now))
  local back = string.format('%.0f', last - now)
  if last - now < BACK_MS then return end
  for _, key in ipairs({key_active(), key_due()}) do
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -back, member) end
  end
  for _, session in ipairs(redis.call('ZRANGE', key_active(), 0, -1)) do guarded(move_back, session, back) end
end
