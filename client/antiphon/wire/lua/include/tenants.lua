-- What a tenant may submit. `tenant:<tenant>` holds its turns that have not ended; those in flight count below zero.
local MINUTE_MS, TRY_AGAIN_MS = 60000, 1000

-- The limit that one more turn of a tenant would exceed, its number, and after how many ms to try again; nil if none.
local function limit_reached(tenant, now, most)
  local turns = key_tenant(tenant)
  local function counts(low, limit)
    if not limit or redis.call('ZCOUNT', turns, low, '+inf') < limit then return false end
    forget_ended(tenant)
    return redis.call('ZCOUNT', turns, low, '+inf') >= limit
  end
  if counts('-inf', most) then return 'tenant_turns', most, TRY_AGAIN_MS end
  local waiting, a_minute = limit_of(tenant, 'waiting'), limit_of(tenant, 'per_minute')
  if counts(0, waiting) then return 'waiting', waiting, TRY_AGAIN_MS end
  local before = a_minute and tonumber(redis.call('LINDEX', key_pace(tenant), a_minute - 1) or '')
  if before and before <= now and before > now - MINUTE_MS then
    return 'per_minute', a_minute, before + MINUTE_MS - now
  end
end

local function count_for_tenant(tenant, turn, now)
  redis.call('HSET', key_turn(turn), 'tenant', tenant)
  redis.call('ZADD', key_tenant(tenant), now, turn)
  local a_minute = limit_of(tenant, 'per_minute')
  if not a_minute then return end
  redis.call('LPUSH', key_pace(tenant), string.format('%.0f', now))
  redis.call('LTRIM', key_pace(tenant), 0, a_minute - 1)
  redis.call('PEXPIRE', key_pace(tenant), MINUTE_MS)
end
