-- Settle a model call: what it has used takes the place of what is held for it. A repetition changes nothing, nor does a
-- call that was estimated in the meantime, or whose day or month has ended.
-- The first write is an HDEL, so that it works at full memory.
-- @args turn fence number cost tokens estimated ledgers...    `estimated` is '1' if no service has counted it
-- -> CAPTURED
-- @include ledgers
for _, ledger in ipairs(ledgers) do
  local key = key_spent(ledger)
  local call = redis.call('HGET', key, 'call:' .. turn)
  if call and string.find(call, fence .. ' ' .. number .. ' ', 1, true) == 1 then
    settle(key, turn, call, cost, tokens, estimated == '1')
  end
end
return {'CAPTURED'}
