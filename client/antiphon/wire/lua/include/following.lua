-- Ask for the cell's notices for a time: the log begins with an entry of its own, or stays as long as this asks for.
-- Returns the id of the newest entry.
local function follow_notices(keep_ms)
  local last = redis.call('XREVRANGE', key_notices(), '+', '-', 'COUNT', 1)[1]
  local id = last and last[1] or redis.call('XADD', key_notices(), '*', 'kind', 'began')
  if redis.call('PTTL', key_notices()) < tonumber(keep_ms) then redis.call('PEXPIRE', key_notices(), keep_ms) end
  return id
end
