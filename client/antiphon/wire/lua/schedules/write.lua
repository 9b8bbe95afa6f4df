-- Write a schedule, change the time at which it is due next, or remove it. `due` is in ms, 'inf' for one that is paused, or
-- '' to remove it. Without `fields` it must exist. A tenant has `limit` schedules at most. The first write is an HSET, or
-- needs no memory. Repeating the call changes nothing.
-- @args session name due tenant limit fields...    names and values in turn
-- -> OK
-- -> NOT_FOUND
-- -> FULL, limit           the tenant has as many
-- @include scheduled
local id = name .. ':' .. session
local known = redis.call('EXISTS', key_schedule(id)) == 1
if #fields == 0 and not known then return {'NOT_FOUND'} end
if due == '' then
  forget_schedule(session, name)
  return {'OK'}
end
if #fields > 0 then
  if tenant ~= '' and has_all_schedules(tenant, id, tonumber(limit)) then return {'FULL', limit} end
  local before = redis.call('HMGET', key_schedule(id), 'tenant', 'on')
  local former, on = before[1] or '', before[2]
  redis.call('HSET', key_schedule(id), unpack(fields))
  if former ~= tenant then redis.call('SREM', key_tenant_schedules(former), id) end
  if on then redis.call('ZREM', key_event_schedules(former), on .. ' ' .. id) end
  on = redis.call('HGET', key_schedule(id), 'on') or ''
  if on ~= '' then redis.call('ZADD', key_event_schedules(tenant), 0, on .. ' ' .. id) end
  if tenant ~= '' then redis.call('SADD', key_tenant_schedules(tenant), id) end
end
redis.call('SADD', key_scheduled(session), name)
redis.call('ZADD', key_schedules(), due, id)
return {'OK'}
