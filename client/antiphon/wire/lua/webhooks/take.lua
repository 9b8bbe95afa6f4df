-- Hand out new notices, and take a webhook that has something to deliver: for `lease_ms` no other worker does. One whose
-- worker was lost is left alone for a moment first, in which that worker may still say what was acknowledged. A call that is
-- repeated after a lost answer takes another webhook; the first one is free again when its lease is over.
-- @args lease_ms pause_ms keep_ms count
-- -> NONE, missed, more    `missed`: behind this notice some are no longer kept. `more`: 1 if there are more to hand out
-- -> TAKEN, missed, more, name, fence, time, fields, deliveries
-- @include following webhooks
if redis.call('EXISTS', key_webhooks()) == 0 then return {'NONE', '', ''} end
local now = now_ms()
local missed, more = dispatch(now, keep_ms)
local name = redis.call('ZRANGEBYSCORE', key_webhooks(), '-inf', now, 'LIMIT', 0, 1)[1]
if not name then return {'NONE', missed, more} end
local fence = redis.call('INCR', key_fence()) -- of the cell: one of a webhook would count from 1 again when it is set anew
redis.call('HSET', key_webhook(name), 'fence', fence)
if redis.call('HGET', key_webhook(name), 'held') == '1' then
  redis.call('HSET', key_webhook(name), 'held', '')
  redis.call('ZADD', key_webhooks(), now + pause_ms, name)
  return {'NONE', missed, more}
end
redis.call('HSET', key_webhook(name), 'held', '1')
redis.call('ZADD', key_webhooks(), now + lease_ms, name)
return {'TAKEN', missed, more, name, fence, string.format('%.0f', now), redis.call('HGETALL', key_webhook(name)),
  redis.call('ZRANGEBYSCORE', key_deliveries(name), '-inf', now, 'LIMIT', 0, count)}
