-- End a run: its messages become history, its terminal event is published, the next turn of the session starts.
-- The fence names the call. The first write is a ZREM, so that it works at full memory.
-- A turn that replaces a part of the history passes `kept`: how many messages stay before its own.
-- `calls` is 'untold' if its tools have run and the history does not show it, and 'told' if the model was told of all
-- such calls of earlier turns. `usage` is what the session's turns have used, with this run.
-- `memories` names those that are to index this turn.
-- `service` is what a model service said with the error of a failed turn, as JSON.
-- @args session turn fence status response error_code error service variables window summary kept keep_events calls usage memories count rest...    `count` messages, then event bodies
-- -> OK                    (also for a repetition)
-- -> STOPPED, stop word    it was cancelled before, and can end only as cancelled
-- -> SUPERSEDED
-- @include publish rq_view shares inbox let_in holder notices conclude memories cut
if fence ~= '' and redis.call('HGET', key_turn(turn), 'done') == fence then return {'OK'} end
local held, stop = holds(session, fence)
if not held then return {'SUPERSEDED'} end
if stop ~= '' and status ~= 'cancelled' then return {'STOPPED', stop} end
local now, bodies = now_ms(), {}
redis.call('ZREM', key_active(), session)
if kept ~= '' and redis.call('LLEN', key_history(session)) > tonumber(kept) then
  redis.call('HSET', key_session(session), 'shortened', 1) -- on purpose: a longer archived copy may be replaced
  cut(session, kept)
end
for i = 1, #rest do
  if i <= tonumber(count) then
    redis.call('RPUSH', key_history(session), rest[i])
  else
    bodies[#bodies + 1] = rest[i]
  end
end
if service ~= '' then redis.call('HSET', key_turn(turn), 'service', service) end
if variables ~= '' then redis.call('HSET', key_session(session), 'variables', variables) end
if window ~= '' then redis.call('HSET', key_session(session), 'window', window) end
if summary ~= '' then redis.call('HSET', key_session(session), 'summary', summary) end
if calls == 'told' then redis.call('HDEL', key_session(session), 'untold') end
if calls == 'untold' then untold(session, turn) end
if usage ~= '' then redis.call('HSET', key_session(session), 'usage', usage) end
if memories ~= '' then to_index(session, turn, memories, now) end
conclude(session, turn, status, now, bodies, tonumber(keep_events), status == 'finished' or tonumber(count) > 0,
  {'done', fence, 'response', response, 'error_code', error_code, 'error', error})
let_go(session)
ready(session, now)
return {'OK'}
