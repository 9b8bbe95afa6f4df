-- Keep a variant of an ended turn, and with `tell` let a worker run it. `id` names it: asking again for a
-- variant sends the command again, and changes nothing. Variants are kept for `lasts_ms`, and never longer than their turn.
-- @args turn id variant most lasts_ms worker tell
-- -> KEPT
-- -> FULL                  the turn has `most` variants
-- -> NOT_LISTENING         the worker does not listen
-- -> TURN_NOT_FOUND        also for a deleted one
-- @include
local f = redis.call('HMGET', key_turn(turn), 'session', 'deleted')
if not f[1] or f[2] then return {'TURN_NOT_FOUND'} end
local key = key_variants(turn)
local known = redis.call('HEXISTS', key, id) == 1
if not known and redis.call('HLEN', key) >= tonumber(most) then return {'FULL'} end
if tell ~= '' then
  local command = '{"command":"variant","turn_id":"' .. turn .. '","job_id":"' .. id .. '"}'
  local listens = redis.call('PUBLISH', key_control(worker), command) > 0
  if known then return {'KEPT'} end
  if not listens then return {'NOT_LISTENING'} end
end
redis.call('HSET', key, id, variant)
local left_ms = redis.call('PTTL', key_turn(turn))
redis.call('PEXPIRE', key, left_ms < 0 and lasts_ms or math.min(lasts_ms, left_ms))
return {'KEPT'}
