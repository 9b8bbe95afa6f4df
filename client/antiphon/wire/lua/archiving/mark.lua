-- A session was saved as it was at `version`. If it has not changed since, all of its keys may expire together.
-- The first write is a PEXPIRE or a ZREM, so that it works at full memory.
-- @args session version left_ms
-- -> OK                    (also for a repetition)
-- -> CHANGED               it was used meanwhile, or is gone; it is saved again when it ends
-- -> DELETED               it was deleted meanwhile: what was saved is deleted again
-- @include life archive
local f = redis.call('HMGET', key_session(session), 'seq', 'created', 'updated')
if f[1] and not f[2] and not f[3] then
  redis.call('ZREM', key_ending(), session)
  redis.call('ZADD', key_forget(), 'NX', now_ms(), session)
  return {'DELETED'}
end
if redis.call('EXISTS', key_session(session)) == 0 or version_of(session) ~= version then return {'CHANGED'} end
live_for(session, left_ms, left_ms)
redis.call('HSET', key_session(session), 'archived', version)
redis.call('HDEL', key_session(session), 'shortened')
redis.call('ZREM', key_ending(), session)
return {'OK'}
