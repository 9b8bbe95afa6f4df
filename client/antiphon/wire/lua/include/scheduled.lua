-- The schedules of a session: each is named in a set of its session, so that they go with it.
local function forget_schedule(session, name)
  local id = name .. ':' .. session
  redis.call('ZREM', key_schedules(), id)
  redis.call('DEL', key_schedule(id))
  redis.call('SREM', key_scheduled(session), name)
end

local function forget_schedules(session)
  for _, name in ipairs(redis.call('SMEMBERS', key_scheduled(session))) do forget_schedule(session, name) end
end
