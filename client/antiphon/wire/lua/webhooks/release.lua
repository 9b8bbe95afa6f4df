-- Leave a webhook to whoever takes it next: when its next delivery is due.
-- @args name fence
-- -> OK
-- -> SUPERSEDED
-- @include
if redis.call('HGET', key_webhook(name), 'fence') ~= fence then return {'SUPERSEDED'} end
local first = redis.call('ZRANGE', key_deliveries(name), 0, 0, 'WITHSCORES')
redis.call('HSET', key_webhook(name), 'held', '')
redis.call('ZADD', key_webhooks(), first[2] or '+inf', name)
return {'OK'}
