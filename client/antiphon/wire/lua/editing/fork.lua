-- Copy a session, its finished turns only, to a new id. `op` names the call, `body` is the event of the source.
-- @args session fork op ttl_ms body names...    of the fields to copy
-- -> OK                    (also for a repetition)
-- -> SESSION_EXISTS
-- @include publish life inbox
local target = key_session(fork)
if redis.call('HGET', target, 'op') == op then return {'OK'} end
if redis.call('EXISTS', target) == 1 and not is_over(fork) then return {'SESSION_EXISTS'} end
local now = now_ms()
begin_anew(fork)
redis.call('HSET', target, 'op', op, 'created', now, 'updated', now, 'ttl', ttl_ms)
local lives = redis.call('EXISTS', key_session(session)) == 1 and not is_over(session)
local values = redis.call('HMGET', key_session(session), unpack(names))
for i = 1, #names do
  if lives and values[i] then redis.call('HSET', target, names[i], values[i]) end
end
if redis.call('EXISTS', key_seq_floor()) == 1 then
  redis.call('HSET', target, 'archived', '')
  -- What an archive holds of the source, and nobody has asked for yet, is this one's past too.
  if redis.call('HGET', target, 'restored') ~= '1' and not redis.call('ZSCORE', key_forget(), session) then
    redis.call('HSETNX', target, 'origin', session)
  end
end
redis.call('COPY', key_history(session), key_history(fork), 'REPLACE')
release_session(fork, now)
if lives then
  publish(session, now, {body})
  if redis.call('LLEN', key_inbox(session)) == 0 then release_session(session, now) end
end
return {'OK'}
