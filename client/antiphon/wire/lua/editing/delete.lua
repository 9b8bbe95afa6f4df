-- Delete a session, and its archived copy a minute later. Its delayed turns are cancelled, so that none of them begins it
-- anew, and so are the suspended ones that others pass by; its schedules go. Its ended turns stay as long as turns are kept.
-- Its hash keeps the seq for another hour, as that of a session that has expired. Open readers are told to look.
-- The first write is a ZREM, so that it works at full memory.
-- @args session
-- -> DELETED, how many of its keys there were
-- -> BUSY, turn            the last one of its inbox
-- @include publish rq_view shares inbox let_in holder notices conclude suspended withdraw give_up archive scheduled memories life
local KEPT_EVENTS = 10000
local turn = redis.call('LINDEX', key_inbox(session), -1)
if turn then return {'BUSY', turn} end
redis.call('ZREM', key_sessions(), session)
for _, outside in ipairs(redis.call('LRANGE', key_turns(session), 0, -1)) do
  if redis.call('ZREM', key_due(), outside) == 1 or redis.call('ZSCORE', key_aside(), outside) then
    keep_journal(session, outside)
    redis.call('DEL', key_journal(outside))
    withdraw(session, outside, 'The session was deleted.', now_ms(), KEPT_EVENTS)
    redis.call('ZREM', key_sessions(), session)
  end
end
if redis.call('EXISTS', key_seq_floor()) == 1 then
  redis.call('ZREM', key_ending(), session)
  raise_floor(session)
  redis.call('ZADD', key_forget(), now_ms() + 60000, session) -- what is being saved now is saved by then
end
forget_schedules(session)
unlearn(session, now_ms())
redis.call('DEL', key_turns(session))
redis.call('HDEL', key_quarantined(), session)
local seq = redis.pcall('HGET', key_session(session), 'seq')
local begun = redis.pcall('HEXISTS', key_session(session), 'created') ~= 0
local existed = redis.call('DEL', key_history(session), key_events(session)) > 0 or begun
if existed then
  redis.call('DEL', key_session(session))
  leave_gap(session, type(seq) == 'string' and seq)
  redis.call('PEXPIRE', key_session(session), HASH_LIVES_ON_MS)
  redis.pcall('PUBLISH', key_live(session), '') -- it only hurries
end
return {'DELETED', existed and 1 or 0}
