-- An archived copy is about to be replaced by one that holds less: what is saved of it as `copy` goes after `keep_ms`.
-- @args copy keep_ms
-- -> OK                    (also for a repetition)
-- @include
redis.call('ZADD', key_forget(), 'NX', now_ms() + keep_ms, copy)
return {'OK'}
