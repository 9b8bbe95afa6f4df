-- Hand out new notices, and take notifications that are due: for `lease_ms` no other worker does. What belongs to a turn
-- that has gone, or was deleted, is removed. A turn that is damaged is left alone for a minute, and given up after a day.
-- @args lease_ms keep_ms count
-- -> OK, more, time, taken...    `more`: 1 if there are more. Of each one: the delivery, the session, the content
-- @include following notice_pages damage pushes
local DAMAGED_MS = 86400000
local now, taken = now_ms(), {}
local more = redis.call('EXISTS', key_push_cursor()) == 1 and dispatch_pushes(now, keep_ms) or ''
local due = redis.call('ZRANGEBYSCORE', key_pushes(), '-inf', now, 'LIMIT', 0, count)
for _, delivery in ipairs(due) do
  local push, since, at, kind, turn = string.match(delivery, '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
  local done = guarded(function()
    if push == WHOLE_TURN then
      hand_out(turn, at, kind, now)
      more = '1'
      return redis.call('ZREM', key_pushes(), delivery)
    end
    local f = push and redis.call('HMGET', key_turn(turn), 'session', 'push:' .. push) or {}
    if not f[1] or not f[2] then return redis.call('ZREM', key_pushes(), delivery) end
    redis.call('ZADD', key_pushes(), now + lease_ms, delivery)
    taken[#taken + 1] = {delivery, f[1], string.match(f[2], '^%S+ (.*)$') or ''}
  end)
  if not done and now - (tonumber(since) or 0) > DAMAGED_MS then
    redis.call('ZREM', key_pushes(), delivery)
  elseif not done then
    redis.call('ZADD', key_pushes(), now + QUARANTINE_MS, delivery)
  end
end
if #due == tonumber(count) then more = '1' end
return {'OK', more, string.format('%.0f', now), unpack(taken)}
