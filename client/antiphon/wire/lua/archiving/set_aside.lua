-- An archived copy is about to be replaced by a shorter one. The old one, saved as `copy`, is deleted after `keep_ms`, or with
-- the session if that was deleted meanwhile.
-- @args session copy keep_ms
-- -> OK                    (also for a repetition)
-- @include
local deleted = redis.call('ZSCORE', key_forget(), session)
redis.call('ZADD', key_forget(), 'NX', deleted and now_ms() + 60000 or now_ms() + keep_ms, copy)
return {'OK'}
