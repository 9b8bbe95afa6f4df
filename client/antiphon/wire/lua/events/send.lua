-- Send an event to the turns of this cell that wait for it, and keep it for those that will. `id` names the event: an
-- event that was sent before is kept as it is, and reaches those that it has not reached. Of a tenant's events the last `most` are kept. `batch` turns are served
-- in one call; repeat it while `more` is 1. The first write is an INCR, which is refused at full memory.
-- @args name tenant id json most batch
-- -> SENT, turns, more     `turns`: how many it has reached until now by calls of this script
-- @include publish rq_view shares inbox let_in holder notices cancelled suspended resumed events damage
local event, now = event_of(name, tenant), now_ms()
local FORGOTTEN_AT_ONCE = 100

-- Make room for one more: what is too old is forgotten, and what is too much.
local function make_place()
  local all = key_tenant_events(tenant)
  local old = redis.call('ZRANGEBYSCORE', all, '-inf', now - KEEP_EVENT_MS, 'LIMIT', 0, FORGOTTEN_AT_ONCE)
  local over = redis.call('ZCARD', all) - #old - tonumber(most) + 1
  if over > 0 then
    for _, one in ipairs(redis.call('ZRANGE', all, #old, #old + math.min(over, FORGOTTEN_AT_ONCE) - 1)) do old[#old + 1] = one end
  end
  for _, one in ipairs(old) do
    local other, where = string.match(one, '^(%S+) (.*)$')
    forget_event(where, other)
  end
end

local turns, sent, at = kept_event(event, id, now)
if not sent then
  turns, sent, at = 0, json, string.format('%.0f', now)
  local position = redis.call('INCR', key_event_position())
  make_place()
  redis.call('ZADD', key_event(event), position, id)
  redis.call('HSET', key_event_data(event), id, at .. ' 0 ' .. json)
  redis.call('ZADD', key_tenant_events(tenant), now, id .. ' ' .. event)
  for _, key in ipairs({key_event(event), key_event_data(event), key_tenant_events(tenant)}) do
    redis.call('PEXPIRE', key, KEEP_EVENT_MS)
  end
end
-- Each call receives the first event that it has not received: an interrupted delivery is made up for here. Returns whether
-- the turn still waits for an event of this name.
local function visit(turn)
  local session, status = unpack(redis.call('HMGET', key_turn(turn), 'session', 'status'))
  if status ~= 'suspended' then return end
  if cancelled_in_rq(turn) then return true end
  local n, call, got, this, waits = 1, open_call(turn, 1), false, false, false
  while call do
    if call.kind == 'event' and not decision_of(turn, n) then
      local first = receive_kept(session, turn, n, call, now)
      got, this = got or first, this or first == id
      waits = waits or not first and redis.call('HGET', key_turn(turn), 'event:' .. n) == event
    end
    n = n + 1
    call = open_call(turn, n)
  end
  if this then turns = turns + 1 end
  if got then resume_if_decided(session, turn, now) end
  return waits
end

local before, found = turns, redis.call('ZPOPMIN', key_waiters(event), batch)
local more = redis.call('ZCARD', key_waiters(event)) > 0 and 1 or 0
for n = 1, #found, 2 do
  local whole, waits = guarded(visit, found[n])
  if waits or not whole then list_waiter(event, found[n], found[n + 1]) end
end
if turns > before then redis.call('HSET', key_event_data(event), id, at .. ' ' .. turns .. ' ' .. sent) end
return {'SENT', turns, more}
