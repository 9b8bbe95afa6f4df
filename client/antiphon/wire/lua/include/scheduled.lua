-- The schedules of a session: each is named in a set of its session, so that they go with it, and in one of its tenant, which
-- counts them. What is damaged there keeps no schedule from its end.
local function forget_schedule(session, name)
  local id = name .. ':' .. session
  local former = redis.pcall('HMGET', key_schedule(id), 'tenant', 'on')
  local tenant, on = former[1], former[2]
  redis.call('ZREM', key_schedules(), id)
  redis.call('DEL', key_schedule(id))
  redis.call('SREM', key_scheduled(session), name)
  if type(tenant) == 'string' then redis.pcall('SREM', key_tenant_schedules(tenant), id) end
  if type(on) == 'string' and on ~= '' then redis.pcall('ZREM', key_event_schedules(tenant or ''), on .. ' ' .. id) end
end

local function forget_schedules(session)
  for _, name in ipairs(redis.call('SMEMBERS', key_scheduled(session))) do forget_schedule(session, name) end
end

-- Whether a tenant may have no schedule of this id, because it has `most` others. Those that an older release has removed
-- are still counted until then.
local function has_all_schedules(tenant, id, most)
  local counted = key_tenant_schedules(tenant)
  if redis.call('SISMEMBER', counted, id) == 1 or redis.call('SCARD', counted) < most then return false end
  for _, other in ipairs(redis.call('SMEMBERS', counted)) do
    if redis.pcall('HGET', key_schedule(other), 'tenant') ~= tenant then redis.call('SREM', counted, other) end
  end
  return redis.call('SCARD', counted) >= most
end
