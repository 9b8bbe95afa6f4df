-- May a call start now? Where it may not, it is told when to come again, and the next one a gap later. Who comes late
-- loses nothing of the last second. Each call that starts makes the gap a little smaller: so an unknown limit is found.
-- A call that is repeated after a lost answer takes a second place.
-- @args scope
-- -> FREE              there is no limit (any more)
-- -> STARTS
-- -> WAITS, ms
local BURST_MS, MOST_WAIT_MS, LASTS_MS, SHRINKS = 1000, 600000, 60000, 0.97
local now = now_ms()
local f = redis.call('HMGET', key_bucket(scope), 'open', 'gap', 'promised')
local open, gap = tonumber(f[1]), tonumber(f[2])
if not open or not gap or open > now + MOST_WAIT_MS then return {'FREE'} end
if open <= now then
  open = math.max(open, now - BURST_MS) + gap
  redis.call('HSET', key_bucket(scope), 'open', string.format('%.0f', open), 'gap', gap * SHRINKS)
  return {'STARTS'}
end
local promised = math.max(open, (tonumber(f[3]) or 0) + gap)
if promised > now + LASTS_MS then promised = open end
redis.call('HSET', key_bucket(scope), 'promised', string.format('%.0f', promised))
redis.call('PEXPIRE', key_bucket(scope), string.format('%.0f', math.max(open, promised) - now + LASTS_MS))
return {'WAITS', string.format('%.0f', promised - now)}
