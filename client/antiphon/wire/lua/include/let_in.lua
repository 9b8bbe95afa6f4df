-- The first turn in line for a free place of a share, and its queue: of several queues, the turn that has waited longest.
local function first_in_line(share)
  local turn, queue, at
  local places = redis.call('HGETALL', key_share(share))
  for i = 1, #places, 2 do
    if not stands(places[i + 1]) then
      local first = redis.call('ZRANGE', key_line(places[i], share), 0, 0, 'WITHSCORES')
      if not first[1] then
        redis.call('HDEL', key_share(share), places[i])
      elseif not at or tonumber(first[2]) < at then
        turn, queue, at = first[1], places[i], tonumber(first[2])
      end
    end
  end
  return turn, queue
end

-- A turn has left a line, and `joins` the tenant's line or `enters` its queue. The turn may have changed since: one
-- that was cancelled with RQ's tools is left to the reaper, which is due at once.
local function go_on(turn, now, how)
  local session, status = unpack(redis.pcall('HMGET', key_turn(turn), 'session', 'status'))
  if status ~= 'waiting' or redis.call('LINDEX', key_inbox(session), 0) ~= turn then return end
  local cancelled = redis.call('HGET', key_rq_job(turn), 'status') == 'canceled'
  redis.call('ZADD', key_active(), cancelled and now or now + LOOK_AGAIN_MS, session)
  if cancelled then return end
  local view = viewed(turn)
  view[how] = now
  pcall(offer, session, turn, now, false, view)
end

-- Let turns of a user in line join the tenant's line, and those in that line enter their queues, while limits allow it.
local function let_in(f, now)
  local room, whose = has_room(f.tenant, f.user or '')
  while room do
    local first = redis.call('ZPOPMIN', key_user_line(whose))[1]
    if not first then break end
    go_on(first, now, 'joins')
    room = has_room(f.tenant, f.user)
  end
  local share = share_of(f.tenant, f.priority)
  while has_room(f.tenant) do
    local turn, queue = first_in_line(share)
    if not turn then return end
    redis.call('ZREM', key_line(queue, share), turn)
    redis.call('HSET', key_share(share), queue, turn)
    go_on(turn, now, 'enters')
  end
end

-- A turn has left its queue: another one of its share may enter. A damaged share keeps no turn from its way.
local function make_room(f, now)
  if share_of(f.tenant, f.priority) then pcall(let_in, f, now) end
end

-- A turn has `ended` or is no longer in flight: others of its user and its share may be.
local function land(turn, f, now, ended)
  local share = ended and share_of(f.tenant, f.priority)
  if share then redis.pcall('ZREM', key_line(f.queue, share), turn) end
  local whole, _, whose = pcall(has_room, f.tenant, f.user or '')
  if whole and whose then
    redis.pcall('SREM', key_user_places(whose), turn)
    redis.pcall('ZREM', key_user_line(whose), turn)
  end
  make_room(f, now)
end
