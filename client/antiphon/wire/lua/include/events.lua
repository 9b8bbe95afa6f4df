-- Events that turns wait for, each kept for a day. Of those with a name, `event:<event>` has the ids by their positions, which
-- only grow (`event_position`), and `event_data:<event>` of each id "<time> <turns it has reached> <JSON>". `tenant_events:<tenant>` has all of a
-- tenant by time. `waiters:<event>` has the turns that may wait for one; `watch` finds what is not there.
-- Of a call that waits, its turn has `event:<n>` and `after:<n>`: what was sent after this position reaches it. Then `got:<n>`
-- is "<position> <event> <JSON>" and the call is decided.
local KEEP_EVENT_MS, LONGEST_WAIT_MS, LONGEST_UNSEEN_MS = 86400000, 30 * 86400000, 3600000

-- An event's name with its tenant: no event of one tenant reaches turns of another.
local function event_of(name, tenant) return (tenant or '') == '' and name or name .. ' ' .. tenant end

local function forget_event(event, id)
  redis.call('ZREM', key_event(event), id)
  redis.call('HDEL', key_event_data(event), id)
  redis.call('ZREM', key_tenant_events(string.match(event, ' (.*)$') or ''), id .. ' ' .. event)
end

-- What was sent: the number of turns that it has reached, its JSON, and when; nil if it is not kept any more.
local function kept_event(event, id, now)
  local at, turns, json = string.match(redis.call('HGET', key_event_data(event), id) or '', '^(%d+) (%d+) (.*)$')
  if at and tonumber(at) > now - KEEP_EVENT_MS then return tonumber(turns), json, at end
  forget_event(event, id)
end

-- A call of a suspended turn receives an event.
local function receive(session, turn, n, call, event, id, position, json, now)
  local f = redis.call('HMGET', key_turn(turn), 'limit:' .. n, 'run', 'step')
  publish(session, now, {event_body('event_received', session, turn, f[2], ',"step":'
    .. (tonumber(f[3]) or 1) - 1 .. ',"event_name":' .. json_text(string.match(event, '^%S+'))
    .. ',"event_id":"' .. id .. '","wait_id":' .. json_text(call.id))})
  redis.call('HSET', key_turn(turn), 'got:' .. n, position .. ' ' .. #event .. ' ' .. event .. json)
  write_decision(turn, n, 'event', f[1] or '{"call_id":' .. json_text(call.id) .. ',"kind":"approve"}', now)
end

-- Let a call receive the first event that was sent after its position, and return its id, if there is one.
local function receive_kept(session, turn, n, call, now)
  local event, after = unpack(redis.call('HMGET', key_turn(turn), 'event:' .. n, 'after:' .. n))
  while event do
    local id, position = unpack(redis.call('ZRANGEBYSCORE', key_event(event), '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
    if not id then return end
    local _, json = kept_event(event, id, now)
    if json then
      receive(session, turn, n, call, event, id, position, json, now)
      return id
    end
  end
end

-- Let the calls of a turn that has just been suspended receive what was sent before. Returns whether one has.
local function receive_all(session, turn, now)
  local n, call, received = 1, open_call(turn, 1), false
  while call do
    if call.kind == 'event' then received = receive_kept(session, turn, n, call, now) or received end
    n = n + 1
    call = open_call(turn, n)
  end
  return received
end

local function resume_if_decided(session, turn, now)
  local soonest, _, told = decided(turn)
  if not soonest then resume(session, turn, now, told) end
end

-- List a turn that has waited for an event since this time.
local function list_waiter(event, turn, since)
  redis.call('ZADD', key_waiters(event), since, turn)
  redis.call('PEXPIRE', key_waiters(event), LONGEST_WAIT_MS)
end

-- A call waits for an event: "<position> <name>".
local function await_event(turn, n, asked, now)
  local after, name = string.match(asked, '^(%d+) (.*)$')
  local event = event_of(name, redis.call('HGET', key_turn(turn), 'tenant'))
  redis.call('HSET', key_turn(turn), 'event:' .. n, event, 'after:' .. n, after)
  list_waiter(event, turn, now)
end
