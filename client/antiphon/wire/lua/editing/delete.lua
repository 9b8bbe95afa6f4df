-- Forget a session, and its archived copy a minute later. Its delayed turns are cancelled: none begins it anew. Its ended
-- turns stay as long as turns are kept. First write is a ZREM, so that it works at full memory.
-- @args session
-- -> DELETED, how many of its keys there were
-- -> BUSY, turn            the last one of its inbox
-- @include publish rq_view inbox holder conclude withdraw archive
local KEPT_EVENTS = 10000
local turn = redis.call('LINDEX', key_inbox(session), -1)
if turn then return {'BUSY', turn} end
redis.call('ZREM', key_sessions(), session)
for _, delayed in ipairs(redis.call('LRANGE', key_turns(session), 0, -1)) do
  if redis.call('ZREM', key_due(), delayed) == 1 then
    withdraw(session, delayed, 'The session was deleted.', now_ms(), KEPT_EVENTS)
    redis.call('ZREM', key_sessions(), session)
  end
end
if redis.call('EXISTS', key_seq_floor()) == 1 then
  redis.call('ZREM', key_ending(), session)
  raise_floor(session)
  redis.call('ZADD', key_forget(), now_ms() + 60000, session) -- what is being saved now is saved by then
end
redis.call('DEL', key_turns(session))
redis.call('HDEL', key_quarantined(), session)
return {'DELETED', redis.call('DEL', key_session(session), key_history(session), key_events(session))}
