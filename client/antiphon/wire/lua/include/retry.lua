-- The turn starts again, at once or after a delay, from its last finished step. Whoever reads along is told.
local function retry(session, turn, now, delay, reason, code)
  local f = redis.call('HMGET', key_turn(turn), 'run', 'step', 'attempt')
  publish(session, now, {event_body('turn_retrying', session, turn, f[1], ',"attempt":' .. f[3] .. ',"step":' .. f[2]
    .. ',"reason":' .. json_text(reason) .. ',"code":' .. json_text(code)
    .. string.format(',"retry_at":%.0f', now + delay))})
  if delay <= 0 then return ready(session, now, true) end
  redis.call('HSET', key_turn(turn), 'status', 'retrying', 'retry_at', now + delay)
  redis.call('ZADD', key_active(), now + delay, session)
  rq_view(turn, 'retrying', now, now + delay)
end
