-- Keep the feedback about a turn, in place of earlier feedback, and count it for the revision on which the turn ran.
-- `figures` is that revision, as agent@revision, or '' where it is not known. A repetition counts nothing twice.
-- @args turn feedback score figures lasts_ms
-- -> RATED, time
-- -> TURN_NOT_FOUND    also for a deleted one
-- @include
local KEEP_MS = 8 * 24 * 3600 * 1000 -- a day longer than an ended turn
local f = redis.call('HMGET', key_turn(turn), 'session', 'deleted', 'score', 'tenant')
if not f[1] or f[2] then return {'TURN_NOT_FOUND'} end
local now = now_ms()
redis.call('HSET', key_turn(turn), 'feedback', feedback, 'score', score, 'rated_at', now)
redis.call('ZREMRANGEBYSCORE', key_rated(), '-inf', now - KEEP_MS)
redis.call('ZADD', key_rated(), now, turn)
redis.call('PEXPIRE', key_rated(), KEEP_MS)
if f[4] then
  redis.call('ZREMRANGEBYSCORE', key_rated_of(f[4]), '-inf', now - KEEP_MS)
  redis.call('ZADD', key_rated_of(f[4]), now, turn)
  redis.call('PEXPIRE', key_rated_of(f[4]), KEEP_MS)
end
if figures ~= '' then
  if not f[3] then redis.call('HINCRBY', key_figures(figures), 'rated', 1) end
  redis.call('HINCRBYFLOAT', key_figures(figures), 'scores', score - (tonumber(f[3] or 0) or 0))
  redis.call('PEXPIRE', key_figures(figures), lasts_ms)
end
return {'RATED', now}
