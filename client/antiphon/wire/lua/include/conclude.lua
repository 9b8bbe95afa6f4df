-- Events stay by count, and those of the run that ends here or still goes on stay whole.
local function trim(session, turn, seq, keep_events)
  local keep_from = seq - keep_events + 1
  local head = redis.call('LINDEX', key_inbox(session), 0)
  for _, whole in ipairs({turn, head ~= turn and head or nil}) do
    keep_from = math.min(keep_from, tonumber(redis.call('HGET', key_turn(whole), 'first_seq') or seq) or seq)
  end
  if keep_from > 1 then redis.call('XTRIM', key_events(session), 'MINID', string.format('%.0f', keep_from)) end
end

-- The end of a run: its status, its place in the inbox, the events that stay, and the next turn's start.
-- The last of `bodies` is the event that ends it.
local function conclude(session, turn, status, now, bodies, keep_events)
  local seq = publish(session, now, bodies)
  redis.call('HSET', key_turn(turn), 'status', status, 'ended_at', now, 'last_seq', seq)
  redis.call('DEL', key_journal(turn))
  redis.call('LREM', key_inbox(session), 1, turn)
  trim(session, turn, seq, keep_events)
  redis.call('EXPIRE', key_turn(turn), KEEP_TURN_SECONDS)
  rq_view(turn, status, now, now + KEEP_TURN_SECONDS * 1000)
  if status == 'failed' then
    local f = redis.call('HMGET', key_turn(turn), 'worker', 'error')
    rq_failure(turn, f[1] or '', f[2] or '')
  end
end
