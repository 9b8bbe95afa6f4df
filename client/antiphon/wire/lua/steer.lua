-- Let a running turn take the input of the turns that were submitted to steer it: it becomes entries of its journal, and
-- those turns end. A turn that is being stopped takes nothing, and one that was cancelled with RQ's tools
-- gives nothing. `length` is the expected length of the journal and names the call. `step` is the model call that will be
-- sent the input.
-- @args session turn fence length step keep_events
-- -> OK, stop word or '', the new entries of the journal    (also for a repetition)
-- -> SUPERSEDED
-- -> CONFLICT, length      the journal is shorter than the caller thinks
-- @include publish rq_view shares inbox let_in holder notices conclude cancelled
local held, stop = holds(session, fence)
if not held then return {'SUPERSEDED'} end
local now, journal, found = now_ms(), key_journal(turn), redis.call('LLEN', key_journal(turn))
if found < tonumber(length) then return {'CONFLICT', found} end
local f = redis.call('HMGET', key_turn(turn), 'run', 'attempt', 'steered')
local steered = f[3] or ''

local function take(other, t)
  local entry = '{"type":"steered","version":2,"turn_id":"' .. other .. '","created":' .. t[3] .. ',"request":' .. t[4] .. '}'
  redis.call('RPUSH', journal, entry)
  steered = steered .. entry .. '\n'
  redis.call('HSET', key_turn(turn), 'steered', steered)
  redis.call('HSET', key_turn(other), 'steered_into', turn)
  publish(session, now, {event_body('turn_steered', session, turn, f[1], ',"attempt":' .. f[2] .. ',"step":' .. step
    .. ',"steered_id":"' .. other .. '"' .. input_of(other))})
  conclude(session, other, 'finished', now, publish(session, now,
    {event_body('turn_finished', session, other, t[5], ',"steered_into":"' .. turn .. '"')}), tonumber(keep_events), true)
end

if found == tonumber(length) and stop == '' then
  for _, other in ipairs(redis.call('LRANGE', key_inbox(session), 1, -1)) do
    local t = redis.pcall('HMGET', key_turn(other), 'steers', 'status', 'created', 'request', 'run')
    if t[1] == turn and t[2] == 'waiting' and not cancelled_in_rq(other) then take(other, t) end
  end
  redis.call('HDEL', key_session(session), 'steer')
end
return {'OK', stop, redis.call('LRANGE', journal, length, -1)}
