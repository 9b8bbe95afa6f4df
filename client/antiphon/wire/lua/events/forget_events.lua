-- Forget the events of a tenant that this cell keeps, `count` at once. Repeat it while there are more. The first write is a
-- ZREM, so that it works at full memory.
-- @args tenant count
-- -> FORGOTTEN, more, how many
-- @include events
local found = redis.call('ZRANGE', key_tenant_events(tenant), 0, count - 1)
for _, one in ipairs(found) do
  local id, event = string.match(one, '^(%S+) (.*)$')
  forget_event(event, id)
end
return {'FORGOTTEN', redis.call('EXISTS', key_tenant_events(tenant)), #found}
