-- The schedules of a tenant, '' without one, that an event of this name starts: those for the name, and those for a beginning
-- of it and *. Paused ones are not among them. Those that an older release has removed or changed are forgotten.
-- @args name tenant never    `never` is when a schedule is due that only events start
-- -> FOUND, ids
-- @include
local all, found = key_event_schedules(tenant), {}

local function add(pattern)
  for _, one in ipairs(redis.call('ZRANGEBYLEX', all, '[' .. pattern .. ' ', '(' .. pattern .. '!')) do
    local id = string.sub(one, #pattern + 2)
    local known = redis.pcall('HMGET', key_schedule(id), 'on', 'tenant')
    if known.err or known[1] == pattern and (known[2] or '') == tenant then
      if redis.call('ZSCORE', key_schedules(), id) == never then found[#found + 1] = id end
    else
      redis.call('ZREM', all, one)
    end
  end
end

if redis.call('EXISTS', all) == 1 then
  add(name)
  for length = 0, #name do add(string.sub(name, 1, length) .. '*') end
end
return {'FOUND', found}
