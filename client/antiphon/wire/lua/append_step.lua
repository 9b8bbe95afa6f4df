-- Append to a turn's journal and publish the events for it, in one step. `length` is the expected length of the journal
-- and names the call; without entries nothing is written. `step` is the step with which a later attempt would start.
-- `usage` is what the session's turns have used, with the steps of this run. `answering` is the step whose answer the
-- model service writes in the background, '0' where it no longer does, and '' where nothing changes.
-- @args session turn fence length step usage answering count rest...    `count` entries, then event bodies
-- -> OK, stop word or ''
-- -> STEER, ''             the same, and turns wait to steer this one: see `steer`
-- -> SUPERSEDED
-- -> CONFLICT, length      the journal is not as long as the caller thinks
-- @include publish holder
local held, stop = holds(session, fence)
if not held then return {'SUPERSEDED'} end
local found = redis.call('LLEN', key_journal(turn))
local steered = stop == '' and redis.call('HGET', key_session(session), 'steer') == turn
if found == length + count then return {steered and 'STEER' or 'OK', stop} end
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
if usage ~= '' then redis.call('HSET', key_turn(turn), 'session_usage', usage) end
if answering ~= '' then redis.call('HSET', key_turn(turn), 'answering', answering) end
if #bodies > 0 then publish(session, now_ms(), bodies) end
return {steered and 'STEER' or 'OK', stop}
