-- What a tenant, and each of its users, may submit. `tenant:<tenant>` holds its turns that have not ended; those in flight count
-- below zero. `user_turns:<hash>` holds those of a user, where their number is limited; ended ones go when it is reached.
local MINUTE_MS, TRY_AGAIN_MS = 60000, 1000

-- After how many ms one more turn keeps to so many a minute; nil if it does now.
local function pace_reached(pace, a_minute, now)
  local before = a_minute and tonumber(redis.call('LINDEX', pace, a_minute - 1) or '')
  if before and before <= now and before > now - MINUTE_MS then return before + MINUTE_MS - now end
end

local function keep_pace(pace, a_minute, now)
  if not a_minute then return end
  redis.call('LPUSH', pace, string.format('%.0f', now))
  redis.call('LTRIM', pace, 0, a_minute - 1)
  redis.call('PEXPIRE', pace, MINUTE_MS)
end

-- The same as `limit_reached`, for the limits of each user of a tenant.
local function user_limit_reached(tenant, user, now)
  local whose, most, a_minute = hash_of_user(tenant, user), limit_of(tenant, 'user_turns'), limit_of(tenant, 'user_per_minute')
  local turns = key_user_turns(whose)
  if most and redis.call('ZCARD', turns) >= most then
    for _, turn in ipairs(redis.call('ZRANGE', turns, 0, -1)) do
      if not GOES_ON[redis.pcall('HGET', key_turn(turn), 'status')] then redis.call('ZREM', turns, turn) end
    end
    if redis.call('ZCARD', turns) >= most then return 'user_turns', most, TRY_AGAIN_MS end
  end
  local wait_ms = pace_reached(key_user_pace(whose), a_minute, now)
  if wait_ms then return 'user_per_minute', a_minute, wait_ms end
end

-- The limit that one more turn of a tenant would exceed, its number, and after how many ms to try again; nil if none.
local function limit_reached(tenant, user, now, most)
  local turns = key_tenant(tenant)
  local function counts(low, limit)
    if not limit or redis.call('ZCOUNT', turns, low, '+inf') < limit then return false end
    forget_ended(tenant)
    return redis.call('ZCOUNT', turns, low, '+inf') >= limit
  end
  if counts('-inf', most) then return 'tenant_turns', most, TRY_AGAIN_MS end
  local waiting, a_minute = limit_of(tenant, 'waiting'), limit_of(tenant, 'per_minute')
  if counts(0, waiting) then return 'waiting', waiting, TRY_AGAIN_MS end
  local wait_ms = pace_reached(key_pace(tenant), a_minute, now)
  if wait_ms then return 'per_minute', a_minute, wait_ms end
  if user ~= '' then return user_limit_reached(tenant, user, now) end
end

local function count_for_tenant(tenant, user, turn, now)
  redis.call('HSET', key_turn(turn), 'tenant', tenant)
  redis.call('ZADD', key_tenant(tenant), now, turn)
  keep_pace(key_pace(tenant), limit_of(tenant, 'per_minute'), now)
  if user == '' then return end
  keep_pace(key_user_pace(hash_of_user(tenant, user)), limit_of(tenant, 'user_per_minute'), now)
end
