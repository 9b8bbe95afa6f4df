-- Shares of a queue. The turns of a tenant have one place in RQ's queue together: one of them stands there, and the others
-- wait in the tenant's line. Without a tenant, turns of high priority have a place together, and so do those of low
-- priority; all other turns stand in the queue by themselves.
-- `share:<share>` names for each queue the turn that has the place, or '' if a line waits while none has it.
local HEAD_START_MS, ROUND_MS, KEEP_ROUNDS_MS, KEEP_PLACES_MS = {high = 600000, low = -600000}, 60000, 86400000, 31 * 86400000
local function head_start(priority, front) return HEAD_START_MS[front and 'high' or priority or ''] or 0 end

local function share_of(tenant, priority) return tenant and '@' .. tenant or priority or nil end

-- A limit of a tenant's own, or the default of all tenants; nil if there is none. A script reads each one once.
local limits_read = {} -- @state
local function limit_of(tenant, name)
  local field = name .. ':' .. tenant
  if limits_read[field] == nil then
    local set = redis.call('HMGET', key_limits(), field, name .. ':')
    limits_read[field] = tonumber(set[1] or set[2] or '') or false
  end
  return limits_read[field] or nil
end

-- No name has a control character: another tenant and user have another hash.
local function hash_of_user(tenant, user) return redis.sha1hex(tenant .. '\31' .. user) end

-- Whether one more turn of a tenant may be in flight: those that stand in a queue or run count below zero in its set. Or of
-- a user of the tenant, '' for none: then those in its line count too, and a hash of the user is returned if they are limited.
local function has_room(tenant, user)
  local most = tenant and user ~= '' and limit_of(tenant, user and 'user_in_flight' or 'in_flight')
  if not user then return not most or redis.call('ZCOUNT', key_tenant(tenant), '-inf', '(0') < most end
  local whose = most and hash_of_user(tenant, user)
  return whose and redis.call('SCARD', key_user_places(whose)) < most, whose
end

-- Whether a turn still has its share's place. One whose session is set aside holds nobody up.
local function stands(turn)
  local f = redis.pcall('HMGET', key_turn(turn), 'status', 'session') -- one that is damaged does not
  return f[1] == 'queued' and redis.call('HEXISTS', key_quarantined(), f[2] or '') == 0
end

-- Give a turn one of its user's places, or put it into the user's line, and return true. What `joins` has left that line.
local function waits_for_user(turn, f)
  local room, whose = has_room(f.tenant, f.user or '')
  if not whose or redis.call('SISMEMBER', key_user_places(whose), turn) == 1 then return false end
  local places, line = key_user_places(whose), key_user_line(whose)
  local waits = not f.joins and (not room or redis.call('ZCARD', line) > 0)
  if waits then redis.call('ZADD', line, (tonumber(f.queued_at or '') or 0) - head_start(f.priority, f.front), turn) else redis.call('SADD', places, turn) end
  redis.call('PEXPIRE', waits and line or places, KEEP_PLACES_MS)
  return waits
end

-- Where a user's turn stands in the line of a tenant: a round (a minute) behind the user's last one there, or at the end of
-- the round that the first turn has begun. `rounds:<share>` has each user's last turn and its place, without a head start.
local function place_of_user(turn, line, share, user, at)
  local rounds, name, first = key_rounds(share), redis.sha1hex(user), redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
  local last, place = string.match(redis.call('HGET', rounds, name) or '', '^(%S+) (%S+)$')
  if last and redis.call('ZSCORE', line, last) then
    at = place + ROUND_MS
  elseif first[1] then
    local begun = first[2] + head_start(unpack(redis.pcall('HMGET', key_turn(first[1]), 'priority', 'front')))
    at = math.min(at, begun + ROUND_MS + 1)
  end
  redis.call('HSET', rounds, name, turn .. string.format(' %.0f', at))
  if redis.call('PTTL', rounds) < 0 then redis.call('PEXPIRE', rounds, KEEP_ROUNDS_MS) end -- else it would keep all users ever
  return at
end

-- Give a turn the place of its share in its queue, or put it into the line if it has to wait. Returns whether it waits, and
-- nil for a turn without a share, and for one that has had its place: it goes on, or a worker is to end it.
local function lines_up(turn, f)
  local queue, tenant, share = f.queue, f.tenant, share_of(f.tenant, f.priority)
  if not share or f.enters or f.status == 'running' or f.offered_at and (f.cancel or f.status == 'queued') then return nil end
  if waits_for_user(turn, f) then return true end
  local line, place = key_line(queue, share), redis.call('HGET', key_share(share), queue)
  local taken = place and stands(place)
  if taken and place == turn then return false end -- it could not enter the queue
  if taken or redis.call('ZCARD', line) > 0 or not has_room(tenant) then
    local at = f.joins or tonumber(f.queued_at or '') or 0
    if tenant and f.user and not f.offered_at and not f.front then at = place_of_user(turn, line, share, f.user, at) end
    redis.call('ZADD', line, at - head_start(f.priority, f.front), turn)
    if not place then redis.call('HSET', key_share(share), queue, '') end
    return true
  end
  redis.call('HSET', key_share(share), queue, turn)
  return false
end

-- Put a turn of high priority behind the first entry of its queue, so that between two of them goes another turn. Returns the
-- time by which it is ordered among the entries: that of the first one.
local function push_second(turn, queue)
  local first = redis.call('LINDEX', key_rq_queue(queue), 0)
  if not first then return redis.call('RPUSH', key_rq_queue(queue), turn) and 0 end
  redis.call('LINSERT', key_rq_queue(queue), 'AFTER', first, turn)
  local at = redis.pcall('HGET', key_turn(first), 'offered_at')
  return type(at) == 'string' and at or 0
end
