-- Hold what one model call may use at most in each budget that it draws on, or in none of them.
-- A budget is reached when all of it is used. While other calls hold the rest, a call that does not fit asks again; one that
-- no other call goes on beside may exceed what is left. So all calls together exceed a budget by one call at most.
-- `number` counts the calls of the turn under this fence. What an earlier attempt holds counts as used, as an estimate.
-- Budgets of a turn or a session have their ledgers in the session's cell (`inner`), those of a day or a month in the cell
-- of the scope (`outer`). A scope's stored budgets take the place of its `own`, which the App declares; those stored for ''
-- are for scopes without others. A child turn also names the turns above it: their ledgers are those of the `turn` and the
-- `session` of a scope, which are '' where they are the call's own.
-- @args turn session fence number cost tokens lasts_ms switched scopes...    `cost` is '' without a price; `lasts_ms` is '' to hold nothing; `switched` is '1' for a fallback; per scope: scope, name, 'inner', 'outer' or 'all', own as JSON, turn, session
-- -> RESERVED, ledgers     (also for a repetition, and where nothing is to be held: these are the ledgers in which the call may be)
-- -> BUSY                  other calls hold the rest
-- -> BUSY, ledger, calls   also some in batches whose turns are not in this cell: turn, call, …
-- -> REACHED, action, scope, per, unit, limit, used, ms until its window ends (0: never), name
-- -> UNPRICED              a cost is limited, and the call has no price
-- -> SUPERSEDED            a later attempt at the turn has asked
-- @include ledgers
local MOST_AWAY = 100
local FOR_EVER_MS, DEFAULT_TTL_MS = 100 * 365 * DAY_MS, 30 * DAY_MS
local RANK = {reject = 3, suspend = 2, fallback = 1}
local now, own_fence = now_ms(), tonumber(string.match(fence, '^%d+'))
local asked, ledgers, names, repeated = {}, {}, {}, false
local wanted = {cost = tonumber(cost) or 0, tokens = tonumber(tokens)}

local function counted(value, name, field)
  if value and not string.find(value, '^%-?%d+$') then
    error({err = 'The field ' .. field .. ' of the ledger ' .. name .. ' is not an integer.'}, 0)
  end
  return tonumber(value or 0)
end

local UNITS = {'cost', 'tokens', 'held_cost', 'held_tokens'}
local function read_ledger(name, per)
  local key, from, ends = key_spent(name), window_of(per, now)
  local f = redis.call('HMGET', key, 'from', 'call:' .. turn, unpack(UNITS))
  local begun = counted(f[1], name, 'from')
  if f[1] and begun < from then
    redis.call('DEL', key)
    f = {}
  elseif begun > from then -- the clock was put back: the later day or month goes on, and does not begin again
    from, ends = window_of(per, begun)
  end
  local ledger = {name = name, key = key, from = from, ends = ends, call = f[2], per = per, away = {}}
  for n, unit in ipairs(UNITS) do ledger[unit] = counted(f[n + 2], name, unit) end
  return ledger
end

local function bury(ledger, whose, call)
  settle(ledger.key, whose, call, nil, nil, true)
  local held_cost, held_tokens = string.match(call, '^%S+ %S+ (%d+) (%d+)')
  for unit, held in pairs({cost = held_cost, tokens = held_tokens}) do
    ledger[unit], ledger['held_' .. unit] = ledger[unit] + held, ledger['held_' .. unit] - held
  end
end

-- Open the ledger of a budget. Returns whether a later attempt of the turn has one open.
local function open(scope, name, budget, whose, place)
  local per = budget.per or 'day'
  local ledger = per == 'turn' and 'turn:' .. whose or per == 'session' and 'session::' .. place
    or scope .. ':' .. per .. ':' .. name
  if not ledgers[ledger] then
    local one = read_ledger(ledger, per)
    one.session = place
    ledgers[ledger], names[#names + 1] = one, ledger
    if one.call and lasts_ms ~= '' then
      if (tonumber(string.match(one.call, '^%d+')) or 0) > own_fence then return true end
      if string.find(one.call, fence .. ' ' .. number .. ' ', 1, true) == 1 then
        repeated = true
      else
        bury(one, turn, one.call)
      end
    end
  end
  asked[#asked + 1] = {ledger = ledgers[ledger], scope = scope, name = name, per = per, action = budget.reached or 'reject',
    unit = budget.cost and 'cost' or 'tokens', most = budget.cost and math.floor(budget.cost * 1e9 + 0.5) or budget.tokens}
end

for i = 1, #scopes, 6 do
  local scope, name, part, own, whose, place = unpack(scopes, i, i + 5)
  if whose == '' then whose, place = turn, session end
  local stored = redis.call('HMGET', key_budgets(scope), name, '')
  for _, budget in ipairs(cjson.decode(stored[1] or own ~= '' and own or stored[2] or '[]')) do
    local inner = budget.per == 'turn' or budget.per == 'session'
    local here = part == 'all' or part == (inner and 'inner' or 'outer')
    if here and open(scope, name, budget, whose, place) then return {'SUPERSEDED'} end
  end
end
if repeated or lasts_ms == '' then return {'RESERVED', names} end

-- What keeps the call from starting: the answer, or nothing.
local function refusal()
  local worst, busy
  for _, one in ipairs(asked) do
    local used, held = one.ledger[one.unit], one.ledger['held_' .. one.unit]
    if one.unit == 'cost' and cost == '' then return {'UNPRICED'} end
    local free = one.action == 'fallback' and switched == '1'
    if not free and used >= one.most then
      if not worst or RANK[one.action] > RANK[worst.action] then worst = one end
    elseif not free and held > 0 and used + held + wanted[one.unit] > one.most then
      busy = busy or one
    end
  end
  if worst then
    local ends = worst.ledger.ends
    return {'REACHED', worst.action, worst.scope, worst.per, worst.unit, string.format('%.0f', worst.most),
      string.format('%.0f', worst.ledger[worst.unit]), string.format('%.0f', ends and ends - now or 0),
      worst.name}
  end
  return busy and {'BUSY'}, busy
end

-- Calls that do not go on: their time is over, or their turn is here and has ended or is held under another fence. A fence with a `~`
-- is that of a call in a batch, which goes on while its turn is suspended. The worker looks for a turn of these that is `away`.
local function is_dead(whose, call, away)
  local theirs, lasts = string.match(call, '^(%S+) .- (%d+)$')
  if not lasts or tonumber(lasts) < now then return true end
  local f = redis.pcall('HMGET', key_turn(whose), 'session', 'status')
  if f.err then return false end -- a turn that is damaged may go on
  local place, status = unpack(f)
  if string.find(theirs, '~', 1, true) then
    if not place and #away < 2 * MOST_AWAY then
      away[#away + 1], away[#away + 2] = whose, call
    end
    return status == 'finished' or status == 'failed' or status == 'cancelled'
  end
  return place and redis.call('HGET', key_session(place), 'fence') ~= theirs
end

local function bury_dead(ledger)
  local found, fields = 0, redis.call('HGETALL', ledger.key)
  ledger.away = {}
  for i = 1, #fields, 2 do
    local whose = string.match(fields[i], '^call:(.*)$')
    if whose and is_dead(whose, fields[i + 1], ledger.away) then
      bury(ledger, whose, fields[i + 1])
      found = found + 1
    end
  end
  return found > 0
end

local no, busy = refusal()
while busy and bury_dead(busy.ledger) do no, busy = refusal() end
if busy and #busy.ledger.away > 0 then return {'BUSY', busy.ledger.name, busy.ledger.away} end
if no then return no end
for _, name in ipairs(names) do
  local one = ledgers[name]
  local lasts = one.ends and one.ends - now + one.ends - one.from or KEEP_TURN_LEDGER_MS
  if one.per == 'session' then
    local ttl = tonumber(redis.call('HGET', key_session(one.session), 'ttl') or DEFAULT_TTL_MS) or DEFAULT_TTL_MS
    lasts = (ttl > 0 and ttl or FOR_EVER_MS) + HASH_LIVES_ON_MS
  end
  redis.call('HSET', one.key, 'from', string.format('%.0f', one.from), 'call:' .. turn, fence .. ' ' .. number .. ' '
    .. string.format('%.0f', wanted.cost) .. ' ' .. tokens .. ' ' .. string.format('%.0f', now + lasts_ms))
  redis.call('HINCRBY', one.key, 'held_cost', string.format('%.0f', wanted.cost))
  redis.call('HINCRBY', one.key, 'held_tokens', tokens)
  redis.call('PEXPIRE', one.key, string.format('%.0f', lasts))
end
return {'RESERVED', names}
