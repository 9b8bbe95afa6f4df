-- A session could not be indexed: it is taken again after `ms`.
-- @args name session fence ms
-- -> OK
-- -> SUPERSEDED            another worker has taken it
-- @include
if redis.call('HGET', key_remembered(session), '@fence/' .. name) ~= fence then return {'SUPERSEDED'} end
redis.call('ZADD', key_unindexed(name), 'XX', now_ms() + ms, session)
return {'OK'}
