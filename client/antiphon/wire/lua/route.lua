-- Note which agent, model and queue were chosen for a turn before it begins: in its journal, its record and its session.
-- The fence names the call. `entry` is that of the journal, `route` the choice as JSON, and `queue` the one that the turn
-- moves to, or nothing: its holder then gives it back, and if it dies, the turn is recovered there.
-- @args session turn fence queue route entry bodies...    event bodies
-- -> OK, stop word or ''    (also for a repetition)
-- -> SUPERSEDED
-- @include publish holder rq_view shares cancelled
local held, stop = holds(session, fence)
if not held then return {'SUPERSEDED'} end
if redis.call('HGET', key_turn(turn), 'routed') == fence then return {'OK', stop} end
redis.call('RPUSH', key_journal(turn), entry)
redis.call('HSET', key_turn(turn), 'routed', fence, 'route', route)
redis.call('HSET', key_session(session), 'route', route)
local now = now_ms()
local f = queue ~= '' and viewed(turn)
if f and f.queue ~= queue then
  if stop == '' and cancelled_in_rq(turn) then stop = stop_cancelled(session, turn) end -- the next lines replace its record
  rq_forget(turn, f.queue, f.execution)
  local share = share_of(f.tenant, f.priority)
  if share and redis.call('HGET', key_share(share), f.queue) == turn then redis.call('HSET', key_share(share), f.queue, '') end
  redis.call('HSET', key_turn(turn), 'queue', queue)
  redis.call('HDEL', key_turn(turn), 'offered_at')
  rq_view(turn, 'running', now)
end
publish(session, now, bodies)
return {'OK', stop}
