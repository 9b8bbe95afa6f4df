-- A session was saved as it was at `version`. If it has not changed since, all of its keys may expire together.
-- The first write is a PEXPIRE, so that it works at full memory.
-- @args session version left_ms
-- -> OK                    (also for a repetition)
-- -> CHANGED               it was used or deleted meanwhile; it is saved again when it ends
-- @include life archive
if redis.call('EXISTS', key_session(session)) == 0 or version_of(session) ~= version then return {'CHANGED'} end
live_for(session, left_ms, left_ms)
redis.call('HSET', key_session(session), 'archived', version)
redis.call('HDEL', key_session(session), 'shortened')
redis.call('ZREM', key_ending(), session)
return {'OK'}
