-- The copy of a deleted session is gone from the store: a new session with this id has nothing to restore.
-- The first write is a ZREM, so that it works at full memory.
-- @args session
-- -> OK                    (also for a repetition)
-- @include
redis.call('ZREM', key_forget(), session)
if redis.call('EXISTS', key_session(session)) == 1 then redis.call('HSET', key_session(session), 'restored', '1') end
return {'OK'}
