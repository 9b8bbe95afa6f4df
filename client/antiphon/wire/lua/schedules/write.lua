-- Write a schedule, change the time at which it is due next, or remove it. `due` is in ms, 'inf' for one that is paused, or
-- '' to remove it. Without `fields` it must exist. The first write is an HSET, or needs no memory. Repeating the call
-- changes nothing.
-- @args session name due fields...    names and values in turn
-- -> OK
-- -> NOT_FOUND
-- @include scheduled
local id = name .. ':' .. session
local known = redis.call('EXISTS', key_schedule(id)) == 1
if #fields == 0 and not known then return {'NOT_FOUND'} end
if due == '' then
  forget_schedule(session, name)
  return {'OK'}
end
if #fields > 0 then redis.call('HSET', key_schedule(id), unpack(fields)) end
redis.call('SADD', key_scheduled(session), name)
redis.call('ZADD', key_schedules(), due, id)
return {'OK'}
