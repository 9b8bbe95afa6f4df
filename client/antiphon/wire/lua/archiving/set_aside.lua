-- An archived copy is about to be replaced by a shorter one. The old one, saved as `copy`, is deleted after `keep_ms`.
-- @args copy keep_ms
-- -> OK                    (also for a repetition)
-- @include
redis.call('ZADD', key_forget(), 'NX', now_ms() + keep_ms, copy)
return {'OK'}
