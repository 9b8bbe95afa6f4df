-- Webhooks: `webhooks` has the time at which each is looked at, `deliveries` what it is to be told. While a worker delivers
-- (`held`), that time is the end of its lease. A delivery names its notice; the event is read when it is sent.
local MOST_DELIVERIES, MOST_NOTICES_AT_ONCE = 100000, 500

local function parts_of(entry)
  local at, number = string.match(entry or '', '^(%d+)-(%d+)$')
  return tonumber(at) or 0, tonumber(number) or 0
end

-- Whether an entry of the log stands behind another one.
local function behind(entry, other)
  local at, number = parts_of(entry)
  local other_at, other_number = parts_of(other)
  return at > other_at or at == other_at and number > other_number
end

-- Whether a webhook asked for this. Of which agent the turn is, the worker reads before it delivers.
local function wants(hook, id, f)
  local types, tenant, since = unpack(hook)
  return behind(id, since) and string.find(types or '', ',' .. f.kind .. ',', 1, true)
    and (tenant == '' or tenant == f.tenant)
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
  local cursor, newest = redis.call('GET', key_dispatched()), follow_notices(keep_ms)
  if cursor == newest then return '', '' end
  local page = redis.call('XRANGE', key_notices(), cursor or '-', '+', 'COUNT', MOST_NOTICES_AT_ONCE)
  local missed = ''
  if page[1] and page[1][1] == cursor then
    table.remove(page, 1)
  else
    missed = cursor or 'the beginning'
    page = redis.call('XRANGE', key_notices(), '-', '+', 'COUNT', MOST_NOTICES_AT_ONCE)
  end
  local hooks = {}
  for _, name in ipairs(redis.call('ZRANGE', key_webhooks(), 0, -1)) do
    guarded(function() hooks[name] = redis.call('HMGET', key_webhook(name), 'types', 'tenant', 'since') end)
  end
  for _, entry in ipairs(page) do
    local f = {}
    for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end
    for name, hook in pairs(hooks) do
      if f.turn and wants(hook, entry[1], f) then guarded(add_delivery, name, entry[1], f, now) end
    end
  end
  local last = page[#page][1]
  redis.call('SET', key_dispatched(), last)
  return missed, last ~= newest and '1' or ''
end
