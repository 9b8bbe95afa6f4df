-- What conversations of pydantic-ai share: their entries, each of which names the one before it.

-- The entries that tips reach, of which each is a line, added to `seen`.
local function reached(tips, seen)
  for entry in string.gmatch(tips, '[^\n]+') do
    while entry and entry ~= '' and not seen[entry] do
      seen[entry] = true
      entry = redis.call('HGET', key_pydantic_entry(entry), 'parent')
    end
  end
  return seen
end

-- A key that several conversations need lives as long as the longest of them. `is_new` are keys without a life yet.
local function outlive(key, ttl_ms, is_new)
  local life = redis.call('PTTL', key)
  if ttl_ms == '' then
    redis.call('PERSIST', key)
  elseif is_new or (life >= 0 and life < tonumber(ttl_ms)) then
    redis.call('PEXPIRE', key, ttl_ms)
  end
end

-- Put a conversation in front of a list, and drop the oldest ones of it that have expired.
local function list(key, conversation, updated, ttl_ms)
  local is_new = redis.call('EXISTS', key) == 0
  redis.call('ZADD', key, updated, conversation)
  for _, oldest in ipairs(redis.call('ZRANGE', key, 0, 1)) do
    if redis.call('EXISTS', key_pydantic_record(oldest)) == 0 then redis.call('ZREM', key, oldest) end
  end
  outlive(key, ttl_ms, is_new)
end
