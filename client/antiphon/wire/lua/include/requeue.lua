-- The last runs of a turn that are over, a line of JSON for each, with what they said and did.
local KEPT_RUNS = 20

local function remember_run(turn)
  local f = redis.call('HMGET', key_turn(turn), 'run', 'attempt', 'started_at', 'ended_at', 'error_code', 'error', 'runs',
    'response', 'journal', 'service')
  local lines = {}
  for line in string.gmatch(f[7] or '', '[^\n]+') do lines[#lines + 1] = line end
  if #lines >= KEPT_RUNS then table.remove(lines, 1) end
  lines[#lines + 1] = '{"run":' .. f[1] .. ',"status":"failed","attempt":' .. f[2] .. ',"started":' .. (f[3] or 'null')
    .. ',"ended":' .. (f[4] or 'null') .. ',"code":' .. json_text(f[5] or '') .. ',"error":' .. json_text(f[6] or '')
    .. ',"response":' .. ((f[8] or '') ~= '' and f[8] or 'null') .. ',"journal":' .. (f[9] or 'null')
    .. ',"service":' .. (f[10] or 'null') .. '}'
  redis.call('HSET', key_turn(turn), 'runs', table.concat(lines, '\n'))
end

-- Why a turn does not run again: its session was deleted (`erasing`), or another tenant has begun one of that name since.
local function kept_from_running(session, turn)
  local whose, created = unpack(redis.call('HMGET', key_turn(turn), 'tenant', 'created'))
  if was_deleted(session, whose, created, turn) then return 'TURN_DELETED' end
  if not whose or is_over(session) then return nil end
  local begun, owner = unpack(redis.call('HMGET', key_session(session), 'created', 'tenant'))
  return begun and owner ~= whose and 'OTHER_TENANT'
end

-- A failed turn runs again, for the call `again`: a new run, at the end of its session's inbox. Returns its position.
local function requeue(session, turn, now, behind, again)
  redis.call('ZADD', key_active(), 'NX', now + LOOK_AGAIN_MS, session) -- first: where it is damaged, nothing is written
  if again then redis.call('HSET', key_turn(turn), 'again', again) end
  if redis.call('EXISTS', key_inbox(session)) == 0 then begin_anew(session) end
  remember_run(turn)
  forget_calls(turn)
  local run = redis.call('HINCRBY', key_turn(turn), 'run', 1)
  redis.call('PERSIST', key_turn(turn))
  redis.call('DEL', key_rq_results(turn)) -- which say why the last run failed
  redis.call('HSET', key_turn(turn), 'attempt', 0, 'crashes', 0, 'errors', 0, 'step', 1)
  redis.call('HDEL', key_turn(turn), 'cancel', 'error', 'error_code', 'done', 'given_back', 'first_seq', 'last_seq', 'started_at', 'ended_at',
    'retry_at', 'response', 'failing', 'keep', 'place', 'journal', 'service', 'steers', 'steered_into', 'session_usage', 'own_usage', 'lacking',
    'waited', 'offered_at', 'app', 'front', 'revision', 'begun', 'missed_at', 'answering', 'route', 'routed', 'feedback', 'score', 'rated_at')
  for entry in string.gmatch(redis.call('HGET', key_turn(turn), 'steered') or '', '[^\n]+') do
    redis.call('RPUSH', key_journal(turn), entry) -- what its earlier runs were steered with belongs to its input
  end
  local tenant = redis.call('HGET', key_turn(turn), 'tenant')
  local begun = redis.call('HSETNX', key_session(session), 'created', now) == 1
  if begun then redis.call('HSET', key_session(session), 'life', life_of(now, turn)) end
  if begun and tenant then redis.call('HSET', key_session(session), 'tenant', tenant) end
  if tenant then redis.pcall('ZADD', key_tenant(tenant), now, turn) end
  if not redis.call('LPOS', key_turns(session), turn) then list_turn(session, turn) end
  return enter_inbox(session, turn, run, now, input_of(turn), nil, nil, behind)
end

-- Whether RQ's tools want a failed turn to run again. RQ's own worker marks each job that it takes as started. If that was an
-- old entry of the queue, the failure is still registered.
local function wanted_again(turn, queue)
  local said = redis.call('HGET', key_rq_job(turn), 'status')
  return said == 'queued' or said == 'started' and not redis.call('ZSCORE', key_rq_failed(queue), turn)
end

-- RQ's tools have offered, or taken, a turn that has ended or waits for its session. Its record is corrected.
local function stay(turn, status, now)
  local said = redis.call('HGET', key_rq_job(turn), 'status')
  if status ~= 'running' and (said == 'queued' or said == 'started') then rq_view(turn, status, now) end
end
