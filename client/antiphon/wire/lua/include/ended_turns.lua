-- Of the turns that count for a tenant, look at the oldest ones, in flight and not, and forget those that have ended or are
-- gone.
local OLDEST_TURNS = 100
local GOES_ON = {queued = true, waiting = true, running = true, retrying = true, suspended = true}

local function forget_ended(tenant)
  local turns = key_tenant(tenant)
  for _, range in ipairs({{'ZRANGEBYSCORE', 0, '+inf'}, {'ZREVRANGEBYSCORE', '(0', '-inf'}}) do
    for _, turn in ipairs(redis.call(range[1], turns, range[2], range[3], 'LIMIT', 0, OLDEST_TURNS)) do
      if not GOES_ON[redis.pcall('HGET', key_turn(turn), 'status')] then redis.call('ZREM', turns, turn) end
    end
  end
end
