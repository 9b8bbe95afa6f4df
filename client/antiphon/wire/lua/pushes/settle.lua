-- A notification was acknowledged or is given up, or with `ms` is tried again then.
-- @args delivery ms
-- -> OK
-- @include
if ms == '' then
  redis.call('ZREM', key_pushes(), delivery)
else
  redis.call('ZADD', key_pushes(), 'XX', now_ms() + ms, delivery)
end
return {'OK'}
