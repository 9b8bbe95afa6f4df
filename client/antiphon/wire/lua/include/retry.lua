-- The turn starts again from its last finished step, at once or after a delay. Readers get an event, unless that step's
-- answer goes on in the background. `service` is what a model service said with its error, as JSON, or nothing.
local function retry(session, turn, now, delay, reason, code, service)
  if code == 'budget_reached' and not redis.pcall('ZSCORE', key_unfunded(), turn) then delay = 0 end -- raised since
  local f = redis.call('HMGET', key_turn(turn), 'run', 'step', 'attempt', 'answering', 'offered_at')
  if f[4] ~= f[2] then publish(session, now, {event_body('turn_retrying', session, turn, f[1], ',"attempt":' .. f[3] .. ',"step":' .. f[2]
    .. ',"reason":' .. json_text(reason) .. ',"code":' .. json_text(code)
    .. string.format(',"retry_at":%.0f', now + delay) .. (service ~= '' and ',"service":' .. service or ''))}) end
  if delay <= 0 and f[5] or redis.call('HGET', key_rq_job(turn), 'status') == 'canceled' then return ready(session, now, true) end
  redis.call('HSET', key_turn(turn), 'status', 'retrying', 'retry_at', now + delay, 'retry_reason', reason, 'retry_code', code,
    'retry_service', service)
  redis.call('ZADD', key_active(), now + delay, session)
  land(turn, rq_view(turn, 'retrying', now, now + delay), now)
  if delay <= 0 then ready(session, now) end -- its router has moved it: it has not stood in its queue yet
end
