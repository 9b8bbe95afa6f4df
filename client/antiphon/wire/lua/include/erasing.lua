-- Deleted sessions in `erasing`: an id with its tenant, or alone where the caller named none. What their turns had said that
-- were submitted before is erased, also of those that they no longer listed: a search of all keys finds these. What a later
-- session of this id lists is not of the deleted one, even if the clock was put back in between.
local function was_deleted(session, tenant, created, turn)
  local marks = redis.call('HMGET', key_erasing(), session, session .. '\31' .. (tenant or ''))
  local at = math.max(tonumber(marks[1] or 0) or 0, tonumber(marks[2] or 0) or 0)
  return (tonumber(created or 0) or 0) < at and type(redis.pcall('LPOS', key_turns(session), turn)) ~= 'number'
end
