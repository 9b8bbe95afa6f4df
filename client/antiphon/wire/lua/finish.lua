-- End a run: its messages become history, its terminal event is published, the next turn of the session starts.
-- The fence names the call. First write is a ZREM, so that it works at full memory.
-- @args session turn fence status response error_code error variables window summary keep_events count rest...    `count` messages, then event bodies
-- -> OK                    (also for a repetition)
-- -> SUPERSEDED
-- @include publish rq_view inbox holder conclude
if fence ~= '' and redis.call('HGET', key_turn(turn), 'done') == fence then return {'OK'} end
if not holds(session, fence) then return {'SUPERSEDED'} end
local now, bodies = now_ms(), {}
redis.call('ZREM', key_active(), session)
for i = 1, #rest do
  if i <= tonumber(count) then
    redis.call('RPUSH', key_history(session), rest[i])
  else
    bodies[#bodies + 1] = rest[i]
  end
end
redis.call('HSET', key_turn(turn), 'done', fence, 'response', response, 'error_code', error_code, 'error', error)
if variables ~= '' then redis.call('HSET', key_session(session), 'variables', variables) end
if window ~= '' then redis.call('HSET', key_session(session), 'window', window) end
if summary ~= '' then redis.call('HSET', key_session(session), 'summary', summary) end
conclude(session, turn, status, now, bodies, tonumber(keep_events))
let_go(session)
ready(session, now)
return {'OK'}
