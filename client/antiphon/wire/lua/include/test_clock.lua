-- The clock of tests: a key, in ms, that the test moves.
local function now_ms()
  return tonumber(redis.call('GET', PREFIX .. ':test_clock'))
end
