-- A decision is written, and a turn whose calls are all decided goes on.
local function write_decision(turn, n, op, json, now)
  redis.call('HSET', key_turn(turn), 'decision:' .. n,
    op .. ' ' .. string.sub(json, 1, -2) .. string.format(',"at":%.0f}', now))
end

-- The turn no longer waits. One that was passed by enters the inbox again, behind the current turn. Returns whether it is
-- the head.
local function stand_up(session, turn)
  redis.call('ZREM', key_suspended(), turn)
  local head = redis.call('LINDEX', key_inbox(session), 0)
  if redis.call('ZREM', key_aside(), turn) == 0 then return head == turn end
  redis.call('HINCRBY', key_session(session), 'aside', -1)
  if not head then
    redis.call('RPUSH', key_inbox(session), turn)
    return true
  end
  redis.call('LINSERT', key_inbox(session), 'AFTER', head, turn)
  redis.call('HSET', key_turn(turn), 'status', 'waiting')
end

-- All open calls are decided: any worker may continue the turn.
local function resume(session, turn, now, told)
  local head, f = stand_up(session, turn), redis.call('HMGET', key_turn(turn), 'run', 'step', 'suspended_at', 'waited')
  redis.call('HSET', key_turn(turn), 'waited',
    string.format('%.0f', (tonumber(f[4] or 0) or 0) + now - (tonumber(f[3] or now) or now)))
  publish(session, now, {event_body('turn_resumed', session, turn, f[1],
    ',"step":' .. (tonumber(f[2]) or 1) - 1 .. ',"decisions":[' .. table.concat(told, ',') .. ']')})
  if head then return ready(session, now, true) end
  rq_view(turn, 'waiting', now)
end
