-- A service limits the calls of a model and key: none starts for `wait_ms`, and then one each `gap_ms` (0: unknown).
-- An unknown gap begins small, and doubles, up to the wait, when a limit is hit although the calls kept to it. Everybody who follows the
-- channel is told. A bucket is advice: at full memory the first write refuses the call, and no turn depends on it.
-- A repetition does nothing more, because the bucket is closed by then.
-- @args scope wait_ms gap_ms
-- -> LIMITED, lasts_ms
local FIRST_GAP_MS, MOST_GAP_MS, MOST_WAIT_MS, LASTS_MS = 50, 10000, 600000, 60000
local now, wait, gap = now_ms(), math.min(tonumber(wait_ms), MOST_WAIT_MS), tonumber(gap_ms)
local f = redis.call('HMGET', key_bucket(scope), 'open', 'gap')
local open, known = tonumber(f[1]) or 0, tonumber(f[2]) or 0
if gap <= 0 then
  gap = known == 0 and FIRST_GAP_MS or known
  if known > 0 and wait > 0 and open <= now then gap = math.min(known * 2, math.max(wait, FIRST_GAP_MS)) end
end
gap = math.min(gap, MOST_GAP_MS)
open = math.min(math.max(open, now + wait), now + MOST_WAIT_MS)
redis.call('HSET', key_bucket(scope), 'open', string.format('%.0f', open), 'gap', gap)
local lasts = string.format('%.0f', open - now + LASTS_MS)
redis.call('PEXPIRE', key_bucket(scope), lasts)
redis.call('PUBLISH', key_buckets(DB), lasts .. ' ' .. scope)
return {'LIMITED', lasts}
