-- Forget a session, and its archived copy a minute later. Its ended turns stay as long as turns are kept.
-- @args session
-- -> DELETED, how many of its keys there were
-- -> BUSY, turn            the last one of its inbox
-- @include archive
local turn = redis.call('LINDEX', key_inbox(session), -1)
if turn then return {'BUSY', turn} end
redis.call('ZREM', key_sessions(), session)
if redis.call('EXISTS', key_seq_floor()) == 1 then
  redis.call('ZREM', key_ending(), session)
  raise_floor(session)
  redis.call('ZADD', key_forget(), now_ms() + 60000, session) -- what is being saved now is saved by then
end
redis.call('DEL', key_turns(session))
redis.call('HDEL', key_quarantined(), session)
return {'DELETED', redis.call('DEL', key_session(session), key_history(session), key_events(session))}
