-- Write a webhook, or without `fields` remove it with all that it was to deliver. It is told of what comes from now on; one
-- that is written again keeps its place. Repeating the call changes nothing.
-- @args name limit keep_ms fields...    names and values in turn
-- -> OK
-- -> FULL, limit           there are so many
-- @include following
if #fields == 0 then
  redis.call('ZREM', key_webhooks(), name)
  redis.call('DEL', key_webhook(name), key_deliveries(name))
  if redis.call('EXISTS', key_webhooks()) == 0 then redis.call('DEL', key_dispatched()) end
  return {'OK'}
end
local known = redis.call('ZSCORE', key_webhooks(), name)
if not known and redis.call('ZCARD', key_webhooks()) >= tonumber(limit) then return {'FULL', limit} end
redis.call('HSET', key_webhook(name), unpack(fields))
if not known then
  local newest = follow_notices(keep_ms)
  redis.call('HSET', key_webhook(name), 'since', newest)
  redis.call('SETNX', key_dispatched(), newest)
  redis.call('ZADD', key_webhooks(), '+inf', name)
end
return {'OK'}
