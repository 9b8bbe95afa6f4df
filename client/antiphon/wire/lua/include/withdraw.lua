-- Cancel a turn that no worker runs. It leaves its place and the session's next turn starts; but what it has achieved
-- is kept by the worker that ends it, so a turn with a journal is offered to one. Returns whether it has ended.
local function withdraw(session, turn, reason, now, keep_events)
  local f = redis.call('HMGET', key_turn(turn), 'queue', 'run')
  local head = redis.call('LINDEX', key_inbox(session), 0) == turn
  redis.call('LREM', key_rq_queue(f[1]), 0, turn)
  if redis.call('EXISTS', key_journal(turn)) == 1 then
    redis.call('HSET', key_turn(turn), 'cancel', reason)
    offer(session, turn, now, true)
    return false
  end
  if head then let_go(session) end
  redis.call('HSET', key_turn(turn), 'error', reason)
  conclude(session, turn, 'cancelled', now,
    {event_body('turn_cancelled', session, turn, f[2], ',"reason":' .. json_text(reason))}, keep_events)
  if head or redis.call('LLEN', key_inbox(session)) == 0 then ready(session, now) end
  return true
end
