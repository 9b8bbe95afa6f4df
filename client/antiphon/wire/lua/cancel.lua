-- Cancel a turn: at once where no worker runs it, else its holder is told, here and with its next answer.
-- What a turn has achieved is kept by the worker that ends it, so a turn with a journal is given to one.
-- First write is a ZREM, so that it works at full memory.
-- @args turn reason keep_events
-- -> CANCELLED
-- -> REQUESTED             a worker runs it and will end it
-- -> ALREADY, status       it has ended before
-- -> TURN_NOT_FOUND
-- @include publish rq_view inbox holder conclude withdraw
local f = redis.call('HMGET', key_turn(turn), 'session', 'status')
local session, status = f[1], f[2]
if not session then return {'TURN_NOT_FOUND'} end
if status == 'finished' or status == 'failed' or status == 'cancelled' then return {'ALREADY', status} end
if reason == '' or reason == 'SUPERSEDED' then reason = 'cancelled' end
redis.call('ZREM', key_due(), turn)
if status ~= 'running' then
  return {withdraw(session, turn, reason, now_ms(), tonumber(keep_events)) and 'CANCELLED' or 'REQUESTED'}
end
redis.call('HSET', key_turn(turn), 'cancel', reason)
redis.call('HSET', key_session(session), 'stop', reason)
redis.call('PUBLISH', key_control(redis.call('HGET', key_session(session), 'holder') or ''),
  '{"command":"cancel","session_id":' .. json_text(session) .. ',"turn_id":"' .. turn .. '","reason":'
        .. json_text(reason) .. '}')
return {'REQUESTED'}
