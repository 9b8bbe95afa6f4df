-- A delivery was acknowledged (`delivered`), is given up (`dropped`), was not asked for (`skipped`), or is tried again in `ms`
-- (`later`). What was acknowledged stays so, whoever holds the webhook by now; only its holder lets it be tried again.
-- @args name fence delivery what ms error
-- -> OK
-- -> SUPERSEDED            another worker holds the webhook, or it is gone
-- @include
local held = redis.call('HGET', key_webhook(name), 'fence') == fence
if what == 'later' then
  if not held then return {'SUPERSEDED'} end
  redis.call('ZADD', key_deliveries(name), 'XX', now_ms() + ms, delivery)
elseif redis.call('ZREM', key_deliveries(name), delivery) == 1 and what ~= 'skipped' then
  redis.call('HINCRBY', key_webhook(name), what, 1)
end
if held and what ~= 'skipped' then redis.call('HSET', key_webhook(name), 'error', error) end
return {held and 'OK' or 'SUPERSEDED'}
