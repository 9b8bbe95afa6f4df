-- Hand out new notices, and take a webhook that has something to deliver: for `lease_ms` no other worker does. One whose
-- worker was lost is left alone for a moment first, in which that worker may still say what was acknowledged. One that is
-- damaged is left alone for a minute. A call that is repeated after a lost answer takes another webhook; the first one is
-- free again when its lease is over.
-- @args lease_ms pause_ms keep_ms count
-- -> NONE, missed, more, pushes    `missed`: behind this notice some are no longer kept. `more`: 1 if there are more to hand out. `pushes`: 1 if turns may have notifications
-- -> TAKEN, missed, more, pushes, name, fence, time, fields, deliveries
-- -> DAMAGED, missed, more, pushes, name, why
-- @include following notice_pages damage webhooks
if redis.call('EXISTS', key_webhooks(), key_push_cursor(), key_pushes()) == 0 then return {'NONE', '', '', ''} end
local pushes = redis.call('EXISTS', key_push_cursor(), key_pushes()) > 0 and '1' or ''
if redis.call('EXISTS', key_webhooks()) == 0 then return {'NONE', '', '', pushes} end
local now, taken = now_ms(), nil
local missed, more = dispatch(now, keep_ms)
local name = redis.call('ZRANGEBYSCORE', key_webhooks(), '-inf', now, 'LIMIT', 0, 1)[1]
if not name then return {'NONE', missed, more, pushes} end
local fence = redis.call('INCR', key_fence()) -- of the cell: one of a webhook would count from 1 again when it is set anew

local function take()
  if redis.call('EXISTS', key_webhook(name)) == 0 then
    redis.call('ZREM', key_webhooks(), name)
    return
  end
  asked_for(name)
  local due = redis.call('ZRANGEBYSCORE', key_deliveries(name), '-inf', now, 'LIMIT', 0, count)
  redis.call('HSET', key_webhook(name), 'fence', fence)
  local free = redis.call('HGET', key_webhook(name), 'held') ~= '1'
  redis.call('ZADD', key_webhooks(), now + (free and lease_ms or pause_ms), name)
  redis.call('HSET', key_webhook(name), 'held', free and '1' or '')
  taken = free and {fields = redis.call('HGETALL', key_webhook(name)), due = due}
end

local done, why = guarded(take)
if not done then
  redis.call('ZADD', key_webhooks(), now + QUARANTINE_MS, name)
  return {'DAMAGED', missed, more, pushes, name, why}
end
if not taken then return {'NONE', missed, more, pushes} end
return {'TAKEN', missed, more, pushes, name, fence, string.format('%.0f', now), taken.fields, taken.due}
