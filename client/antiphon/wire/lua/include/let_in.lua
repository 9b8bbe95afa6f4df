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

-- Let turns in line enter their queues while a place is free and the tenant's limit allows it. What has become of a turn
-- meanwhile counts: one that was cancelled with RQ's tools is left to the reaper, which is due at once.
local function let_in(share, tenant, now)
  while has_room(tenant) do
    local turn, queue = first_in_line(share)
    if not turn then return end
    redis.call('ZREM', key_line(queue, share), turn)
    redis.call('HSET', key_share(share), queue, turn)
    local f = redis.call('HMGET', key_turn(turn), 'session', 'status')
    if f[2] == 'waiting' and redis.call('LINDEX', key_inbox(f[1]), 0) == turn then
      if redis.call('HGET', key_rq_job(turn), 'status') == 'canceled' then
        redis.call('ZADD', key_active(), now, f[1])
      else
        redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, f[1])
        pcall(enter_queue, turn, viewed(turn), now)
      end
    end
  end
end

-- A turn has left its queue, or is no longer in flight: another one of its share may enter. A damaged share keeps no turn from
-- its way.
local function make_room(f, now)
  local share = share_of(f.tenant, f.priority)
  if share then pcall(let_in, share, f.tenant, now) end
end

local function leave_line(turn, f)
  local share = share_of(f.tenant, f.priority)
  if share then redis.pcall('ZREM', key_line(f.queue, share), turn) end
end
