-- Ledgers of budgets. `spent:<ledger>` counts what model calls have used in a turn, a session, or in the day or month that
-- begins at `from`: `cost` in nano-dollars and `tokens`, the parts of them that are estimated, and what is held for calls
-- that go on. Of those, `call:<turn>` has fence, number, cost, tokens, and until when at most it is held.
local DAY_MS, KEEP_TURN_LEDGER_MS = 86400000, 40 * 86400000

-- The first day, since 1970, of the month of a day, and that of the next month.
local function month_around(day)
  local first, year = 0, 1970
  while true do
    local leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
    for _, length in ipairs({31, leap and 29 or 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}) do
      if day < first + length then return first, first + length end
      first = first + length
    end
    year = year + 1
  end
end

-- When the day or month of this time has begun and when it ends; 0 and nil for other budgets.
local function window_of(per, now)
  local first = math.floor(now / DAY_MS)
  local after = first + 1
  if per == 'month' then first, after = month_around(first) end
  if per ~= 'month' and per ~= 'day' then return 0, nil end
  return first * DAY_MS, after * DAY_MS
end

-- What a call has used takes the place of what is held for it. The first write is an HDEL.
local function settle(key, turn, call, cost, tokens, estimated)
  local held_cost, held_tokens = string.match(call, '^%S+ %S+ (%d+) (%d+)')
  redis.call('HDEL', key, 'call:' .. turn)
  for unit, amounts in pairs({cost = {held_cost or 0, cost or held_cost or 0}, tokens = {held_tokens or 0, tokens or held_tokens or 0}}) do
    redis.call('HINCRBY', key, 'held_' .. unit, string.format('%.0f', 0 - amounts[1])) -- Redis takes no -0
    redis.call('HINCRBY', key, unit, amounts[2])
    if estimated then redis.call('HINCRBY', key, 'estimated_' .. unit, amounts[2]) end
  end
end
