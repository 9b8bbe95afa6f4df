-- Deleted sessions in `erasing`: an id with its tenant, or alone where the caller named none. What their turns had said that
-- were submitted before is erased, also of those that they no longer listed: a search of all keys finds these.
local function was_deleted(session, tenant, created)
  local marks = redis.call('HMGET', key_erasing(), session, session .. '\31' .. (tenant or ''))
  return (tonumber(created or 0) or 0) < math.max(tonumber(marks[1] or 0) or 0, tonumber(marks[2] or 0) or 0)
end
