-- End a run: its messages become history, its terminal event is published, the next turn of the session starts.
-- The fence names the call. The first write is a ZREM, so that it works at full memory.
-- A turn that replaces a part of the history passes `kept`: how many messages stay before its own.
-- `calls` is 'untold' if its tools have run and the history does not show it, and 'told' if the model was told of all
-- such calls of earlier turns. `usage` is what the session's turns have used, with this run.
-- `memories` names those that are to index this turn.
-- `service` is what a model service said with the error of a failed turn, as JSON.
-- `events_ttl` is for how long its App keeps the events of idle sessions, or empty for the default.
-- @args session turn fence status response error_code error service variables window summary kept keep_events calls usage memories events_ttl count rest...    `count` messages, then event bodies
-- -> OK                    (also for a repetition)
-- -> STOPPED, stop word    it was cancelled before, and can end only as cancelled
-- -> SUPERSEDED
-- @include publish rq_view shares inbox let_in holder notices conclude memories cut ends
local f = viewed(turn)
if fence ~= '' and f.done == fence then return {'OK'} end
local held, stop, holder, seq, life = holds(session, fence, unpack(LIFE))
if not held then return {'SUPERSEDED'} end
if stop ~= '' and status ~= 'cancelled' then return {'STOPPED', stop} end
local now, bodies, number, length = now_ms(), {}, tonumber(count), 0
local before = kept ~= '' and redis.call('LLEN', key_history(session)) or 0
local cut_to = kept ~= '' and before > tonumber(kept) and tonumber(kept)
redis.call('ZREM', key_active(), session)
if cut_to then
  redis.call('HSET', key_session(session), 'shortened', 1) -- on purpose: a longer archived copy may be replaced
  cut(session, kept)
end
for first = 1, number, 1000 do
  length = redis.call('RPUSH', key_history(session), unpack(rest, first, math.min(number, first + 999)))
end
for i = number + 1, #rest do bodies[#bodies + 1] = rest[i] end
for name, value in pairs({variables = variables, window = window, summary = summary, usage = usage}) do
  if value ~= '' then FREE[#FREE + 1], FREE[#FREE + 2] = name, value end
end
note_ends(FREE, life[6], tonumber(seq), cut_to and before or length - number, cut_to, seq + #bodies, length)
if events_ttl ~= (life[7] or '') then
  FREE[#FREE + 1], FREE[#FREE + 2], life[7] = 'events_ttl', events_ttl, events_ttl
end
if service ~= '' then redis.call('HSET', key_turn(turn), 'service', service) end
if calls == 'told' then redis.call('HDEL', key_session(session), 'untold') end
if calls == 'untold' then untold(session, turn) end
if memories ~= '' then to_index(session, turn, memories, now) end
redis.call('HDEL', key_held(holder), session)
f.error = error
local head = conclude(session, turn, status, now, publish(session, now, bodies, seq, unpack(FREE)), tonumber(keep_events),
  status == 'finished' or number > 0, f, 'done', fence, 'response', response, 'error_code', error_code, 'error', error)
ready(session, now, false, head, life)
return {'OK'}
