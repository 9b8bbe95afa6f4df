-- Keep a number of events, and all events of the run that ends here and of the one that still goes on.
local function trim(session, seq, keep_events, first, head)
  local others = head and redis.pcall('HGET', key_turn(head), 'first_seq') -- it may be damaged
  local keep_from = math.min(seq - keep_events + 1, tonumber(first or '') or seq, tonumber(others or '') or seq)
  if keep_from > 1 then redis.call('XTRIM', key_events(session), 'MINID', string.format('%.0f', keep_from)) end
end

-- Tools of this turn have run, or may have, and the history does not show it: the session's next turn is told.
local MOST_UNTOLD = 1300
local function untold(session, turn)
  local others = redis.call('HGET', key_session(session), 'untold') or ''
  redis.call('HSET', key_session(session), 'untold', string.sub(turn .. ' ' .. others, 1, MOST_UNTOLD))
end

-- A turn leaves the inbox, where it is the first one unless it never ran. Returns the next turn there.
local function leave_inbox(session, turn)
  local first, head = unpack(redis.call('LPOP', key_inbox(session), 2) or {})
  if head then redis.call('LPUSH', key_inbox(session), head) end
  if first == turn or not first then return head end
  redis.call('LPUSH', key_inbox(session), first)
  redis.call('LREM', key_inbox(session), 1, turn)
  return first
end

-- The end of a run: its status, its place in the inbox, the events that stay, and the next turn's start.
-- `seq` is the event that ends it. A turn without messages in the history keeps its `place` there. `f` is what `viewed`
-- returns if the caller has read it, and the rest further fields of the turn with their values. Returns the inbox's next turn.
local function conclude(session, turn, status, now, seq, keep_events, left, f, ...)
  f = f or viewed(turn)
  if not left then redis.call('HSET', key_turn(turn), 'place', redis.call('LLEN', key_history(session))) end
  redis.call('HSET', key_turn(turn), 'status', status, 'ended_at', now, 'last_seq', seq, ...)
  f.ended_at = now
  redis.call('DEL', key_journal(turn))
  local head = leave_inbox(session, turn)
  trim(session, seq, keep_events, f.first_seq, head)
  redis.call('EXPIRE', key_turn(turn), KEEP_TURN_SECONDS)
  pcall(rq_view, turn, status, now, nil, f) -- RQ's keys keep no turn from its end
  if f.tenant then redis.pcall('ZREM', key_tenant(f.tenant), turn) end -- a damaged count keeps no turn from its end
  notice('turn_' .. status, session, turn, seq, f.tenant)
  land(turn, f, now, true)
  if status == 'failed' then rq_failure(turn, f.worker or '', f.error or '') end
  return head
end
