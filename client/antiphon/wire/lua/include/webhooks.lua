-- Webhooks: `webhooks` has the time at which each is looked at, `deliveries` what it is to be told. While a worker delivers
-- (`held`), that time is the end of its lease. A delivery names its notice; the event is read when it is sent.
local MOST_DELIVERIES = 100000

-- Whether a webhook asked for this. Of which agent the turn is, the worker reads before it delivers.
local function wants(hook, id, f)
  local types, tenant, since = unpack(hook)
  return behind(id, since) and string.find(types or '', ',' .. f.kind .. ',', 1, true)
    and (tenant == '' or tenant == f.tenant)
end

-- What a webhook asked for. Raises what is wrong with it.
local function asked_for(name)
  local hook = redis.call('HMGET', key_webhook(name), 'types', 'tenant', 'since')
  if not (hook[1] and hook[2]) then error({err = 'The webhook has no types or no tenant.'}, 0) end
  return hook
end

-- A webhook misses notices because it is damaged: `take` is to find it, once a minute.
local function find_damage(name, now)
  if tonumber(redis.call('ZSCORE', key_webhooks(), name)) > now + QUARANTINE_MS then
    redis.call('ZADD', key_webhooks(), now, name)
  end
end

local function add_delivery(name, id, f, now)
  if redis.call('ZCARD', key_deliveries(name)) >= MOST_DELIVERIES then
    redis.call('HINCRBY', key_webhook(name), 'dropped', 1)
    return
  end
  local at = string.format('%.0f', now)
  redis.call('ZADD', key_deliveries(name), at, table.concat({id, at, f.kind, f.seq, f.turn, f.session}, ' '))
  if redis.call('HGET', key_webhook(name), 'held') ~= '1' then redis.call('ZADD', key_webhooks(), 'LT', at, name) end
end

-- Hand new notices to the webhooks that want them. Returns the notice behind which some are missing, or '', and '1'
-- if there are more.
local function dispatch(now, keep_ms)
  local page, missed, more = notices_behind(key_dispatched(), keep_ms)
  local hooks = {}
  for _, name in ipairs(#page > 0 and redis.call('ZRANGE', key_webhooks(), 0, -1) or {}) do
    local whole, hook = guarded(asked_for, name)
    if whole then hooks[name] = hook else find_damage(name, now) end
  end
  for _, f in ipairs(page) do
    for name, hook in pairs(hooks) do
      if f.turn and wants(hook, f.id, f) and not guarded(add_delivery, name, f.id, f, now) then find_damage(name, now) end
    end
  end
  if #page > 0 then redis.call('SET', key_dispatched(), page[#page].id) end
  return missed, more
end
