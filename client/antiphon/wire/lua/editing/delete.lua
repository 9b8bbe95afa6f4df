-- Forget a session. Its ended turns stay as long as turns are kept.
-- @args session
-- -> DELETED, how many of its keys there were
-- -> BUSY, turn            the last one of its inbox
-- @include
local turn = redis.call('LINDEX', key_inbox(session), -1)
if turn then return {'BUSY', turn} end
redis.call('ZREM', key_sessions(), session)
return {'DELETED', redis.call('DEL', key_session(session), key_history(session), key_events(session))}
