-- Cancel a turn that no worker runs, and start the session's next turn. A turn that has something to keep is offered to a
-- worker, which ends it: one with a journal, and one that has begun if `keep` says that its question stays. It waits
-- where it was suspended and passed by, and another turn runs now.
-- Returns whether it has ended.
local function withdraw(session, turn, reason, now, keep_events, keep)
  local f = redis.call('HMGET', key_turn(turn), 'queue', 'run', 'first_seq')
  local head = stand_up(session, turn)
  redis.call('LREM', key_rq_queue(f[1]), 0, turn)
  if redis.call('EXISTS', key_journal(turn)) == 1 or keep == 'partial' and f[3] then
    redis.call('HSET', key_turn(turn), 'cancel', reason, 'keep', keep or 'steps')
    if head then offer(session, turn, now, true) else rq_view(turn, 'waiting', now) end
    return false
  end
  if head then let_go(session) end
  redis.call('HSET', key_turn(turn), 'error', reason)
  conclude(session, turn, 'cancelled', now, publish(session, now,
    {event_body('turn_cancelled', session, turn, f[2], ',"reason":' .. json_text(reason))}), keep_events)
  if head or redis.call('LLEN', key_inbox(session)) == 0 then ready(session, now) end
  return true
end
