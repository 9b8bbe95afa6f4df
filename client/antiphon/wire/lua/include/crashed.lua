-- The recovery of a turn whose lease has expired: it goes on, or it fails where its workers died too often.

-- A stock worker that died has left its own entries among RQ's running jobs: RQ would fail the job for them later.
local function forget_executions(turn)
  local queue = redis.call('HGET', key_turn(turn), 'queue')
  for _, execution in ipairs(redis.call('ZRANGE', key_rq_executions(turn), 0, -1)) do
    redis.call('ZREM', key_rq_started(queue), turn .. ':' .. execution)
  end
  redis.call('DEL', key_rq_executions(turn))
end

local function crashed(session, turn, crashes, now, act)
  redis.call('HSET', key_turn(turn), 'crashes', crashes)
  forget_executions(turn)
  let_go(session)
  if crashes < tonumber(crash_limit) then
    retry(session, turn, now, 0, reason, code)
    return act(session, turn, 'recovered')
  end
  local message, failed = 'The turn was given up after ' .. crashes .. ' crashes of its worker.', 'worker_crashed'
  if code ~= 'worker_died' then message, failed = message .. ' ' .. reason, code end
  redis.call('HSET', key_turn(turn), 'error', message, 'error_code', failed)
  conclude(session, turn, 'failed', now, {event_body('turn_failed', session, turn,
    redis.call('HGET', key_turn(turn), 'run'), ',"code":' .. json_text(failed) .. ',"message":' .. json_text(message))},
    tonumber(keep_events))
  ready(session, now)
  act(session, turn, 'failed')
end
