-- Recover a turn whose lease has expired: it continues, or it fails if its workers have died too often.

-- A stock worker that died has left its own entries among RQ's running jobs: RQ would fail the job for them later.
local function forget_executions(turn)
  local queue = redis.call('HGET', key_turn(turn), 'queue')
  for _, execution in ipairs(redis.call('ZRANGE', key_rq_executions(turn), 0, -1)) do
    redis.call('ZREM', key_rq_started(queue), turn .. ':' .. execution)
  end
  redis.call('DEL', key_rq_executions(turn))
end

-- A turn that was to be cancelled, and that no worker can end. Nothing of it stays in the history.
local function end_cancelled(session, turn, now)
  local f = redis.call('HMGET', key_turn(turn), 'run', 'cancel', 'keep')
  redis.call('HSET', key_turn(turn), 'error', f[2])
  count_usage(session, turn)
  keep_journal(session, turn)
  conclude(session, turn, 'cancelled', now, publish(session, now, {event_body('turn_cancelled', session, turn, f[1],
    ',"reason":' .. json_text(f[2]) .. ',"keep":"' .. (f[3] or 'steps') .. '"')}), tonumber(keep_events))
  ready(session, now)
end

local function crashed(session, turn, crashes, now, act)
  redis.call('HSET', key_turn(turn), 'crashes', crashes)
  forget_executions(turn)
  let_go(session)
  if crashes < tonumber(crash_limit) then
    retry(session, turn, now, 0, reason, code, '')
    return act(session, turn, 'recovered')
  end
  if cancelled_in_rq(turn) then redis.call('HSETNX', key_turn(turn), 'cancel', IN_RQ) end
  if redis.call('HEXISTS', key_turn(turn), 'cancel') == 1 then
    end_cancelled(session, turn, now)
    return act(session, turn, 'cancelled')
  end
  local message, failed = 'The turn was given up after ' .. crashes .. ' crashes of its worker.', 'worker_crashed'
  if code ~= 'worker_died' then message, failed = message .. ' ' .. reason, code end
  give_up(session, turn, now, failed, message)
  act(session, turn, 'failed')
end
