-- Append to a turn's journal and publish what that means, as one act. `length` is the journal's expected length and
-- names the call, so there is at least one entry; `step` is the step that a later attempt would start with.
-- @args session turn fence length step count rest...    `count` entries, then event bodies
-- -> OK, stop word or ''
-- -> SUPERSEDED
-- -> CONFLICT, length      the journal is not as long as the caller thinks
-- @include publish holder
if not holds(session, fence) then return {'SUPERSEDED'} end
local stop = redis.call('HGET', key_session(session), 'stop') or ''
local found = redis.call('LLEN', key_journal(turn))
if found == length + count then return {'OK', stop} end
if found ~= tonumber(length) then return {'CONFLICT', found} end
local bodies = {}
for i = 1, #rest do
  if i <= tonumber(count) then
    redis.call('RPUSH', key_journal(turn), rest[i])
  else
    bodies[#bodies + 1] = rest[i]
  end
end
redis.call('HSET', key_turn(turn), 'step', step)
if #bodies > 0 then publish(session, now_ms(), bodies) end
return {'OK', stop}
