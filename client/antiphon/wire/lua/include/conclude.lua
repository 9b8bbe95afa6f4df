-- Keep a number of events, and all events of the run that ends here and of the one that still goes on.
local function trim(session, turn, seq, keep_events)
  local keep_from = seq - keep_events + 1
  local head = redis.call('LINDEX', key_inbox(session), 0)
  for _, whole in ipairs({turn, head ~= turn and head or nil}) do
    keep_from = math.min(keep_from, tonumber(redis.call('HGET', key_turn(whole), 'first_seq') or seq) or seq)
  end
  if keep_from > 1 then redis.call('XTRIM', key_events(session), 'MINID', string.format('%.0f', keep_from)) end
end

-- Tools of this turn have run, or may have, and the history does not show it: the session's next turn is told.
local MOST_UNTOLD = 1300
local function untold(session, turn)
  local others = redis.call('HGET', key_session(session), 'untold') or ''
  redis.call('HSET', key_session(session), 'untold', string.sub(turn .. ' ' .. others, 1, MOST_UNTOLD))
end

-- The end of a run: its status, its place in the inbox, the events that stay, and the next turn's start.
-- The last of `bodies` is the event that ends it. A turn without messages in the history keeps its `place` there. `more`
-- lists further fields of the turn and their values.
local function conclude(session, turn, status, now, bodies, keep_events, left, more)
  local seq = publish(session, now, bodies)
  if not left then redis.call('HSET', key_turn(turn), 'place', redis.call('LLEN', key_history(session))) end
  redis.call('HSET', key_turn(turn), 'status', status, 'ended_at', now, 'last_seq', seq, unpack(more or {}))
  redis.call('DEL', key_journal(turn))
  redis.call('LREM', key_inbox(session), 1, turn)
  trim(session, turn, seq, keep_events)
  redis.call('EXPIRE', key_turn(turn), KEEP_TURN_SECONDS)
  local f = viewed(turn)
  pcall(rq_view, turn, status, now, now + KEEP_TURN_SECONDS * 1000, nil, f) -- RQ's keys keep no turn from its end
  if f.tenant then redis.pcall('ZREM', key_tenant(f.tenant), turn) end -- a damaged count keeps no turn from its end
  notice('turn_' .. status, session, turn, seq, f.tenant)
  leave_line(turn, f)
  make_room(f, now)
  if status == 'failed' then
    rq_failure(turn, f.worker or '', f.error or '')
  end
end
