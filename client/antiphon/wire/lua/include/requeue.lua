-- A failed turn runs again: a new run, with fresh counters, at the end of its session's inbox.
-- Returns true where that makes it the head.
local function requeue(session, turn, now)
  if redis.call('EXISTS', key_inbox(session)) == 0 then begin_anew(session) end
  local run = redis.call('HINCRBY', key_turn(turn), 'run', 1)
  redis.call('PERSIST', key_turn(turn))
  redis.call('DEL', key_rq_results(turn)) -- which say why the last run failed
  redis.call('HSET', key_turn(turn), 'attempt', 0, 'crashes', 0, 'errors', 0, 'step', 1)
  redis.call('HDEL', key_turn(turn), 'cancel', 'error', 'error_code', 'done', 'given_back', 'first_seq', 'last_seq',
    'started_at', 'ended_at', 'retry_at', 'response')
  redis.call('HSETNX', key_session(session), 'created', now)
  local position = enter_inbox(session, turn, run, now)
  if position == 0 then redis.call('LREM', key_rq_queue(redis.call('HGET', key_turn(turn), 'queue')), -1, turn) end
  return position == 0
end

-- What has ended or waits for its session was put into the queue by RQ's tools: its record says again what it is.
local function stay(turn, status, now)
  if status ~= 'running' and status ~= 'suspended' and redis.call('HGET', key_rq_job(turn), 'status') == 'queued' then
    rq_view(turn, status, now, now + KEEP_TURN_SECONDS * 1000)
  end
end
