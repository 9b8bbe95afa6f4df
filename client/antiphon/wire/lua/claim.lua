-- Take up to `max` turns over the queues in their order: lease each session, make its fence, start and load the turn.
-- At most `max_alone` turns that must run alone are taken. Further ones, and turns of a deployment with another prefix on
-- the same queue, keep their places.
-- A turn whose needs the worker's `app` lacks keeps its place for a worker of another App.
-- With `only`, take that turn alone. `token` names the call: a repetition with the same token gets the first answer.
-- @args worker token lease_ms max max_alone only app queues...
-- -> CLAIMED, turns, foreign jobs (id, queue, data), turns that must run alone, damaged (session, turn, reason), others (queue, prefix), [promotions as JSON]
-- -> SUSPENDED             `rq suspend` is in force
-- @include publish rq_view life shares inbox let_in holder suspended erasing requeue load damage foreign
local MOST_ENTRIES = 1000
-- By this time a process of its own has claimed the turn, or it is offered to another worker (at once if this one dies).
-- On a machine without free processors a process takes long to start, and a second one would slow both down.
local start_alone_ms = math.max(tonumber(lease_ms), 30000)
local now, held = now_ms(), key_held(worker)
local turns, foreign, alone, damaged, others = {}, {}, {}, {}, {}
local popped, left, last_fence = {} -- of a queue: what was taken out and not looked at, what stays; the number of the last fence
local suspended, promotions = unpack(redis.call('MGET', key_rq_suspended(), key_promotions()))

-- What a first call with this token has taken.
local function taken(session, as)
  if as == 'alone-' .. token then
    alone[#alone + 1] = redis.call('LINDEX', key_inbox(session), 0) or nil
  elseif session ~= '' and string.sub(as, -#token) == token then
    local turn, s = redis.call('HGET', key_session(session), 'turn'), redis.call('HMGET', key_session(session), unpack(OF_SESSION, 1, 14))
    turns[#turns + 1] = load(session, turn, s, read_turn(turn), now)
  end
end

if redis.call('HGET', held, '') == token then
  local entries = redis.call('HGETALL', held)
  for i = 1, #entries, 2 do guarded(taken, entries[i], entries[i + 1]) end
  return {'CLAIMED', turns, foreign, alone, damaged, others, promotions or nil}
end
if suspended then return {'SUSPENDED'} end

-- `before` is the worker that was to run the session's turn alone and has not done so: a holder without a fence.
local function hold(session, before, as)
  if (before or '') ~= '' then redis.call('HDEL', key_held(before), session) end
  redis.call('HSET', held, session, as, '', token)
  if #turns + #alone == 0 then redis.call('PEXPIRE', held, 3600000) end
end

-- A failed turn that RQ's tools want to run again enters its session's inbox. Returns it if it is the first one there.
local function as_it_runs_again(turn, f)
  if not wanted_again(turn, f.queue) or kept_from_running(f.session, turn) then return f end
  if requeue(f.session, turn, now) > 0 then return end
  redis.call('LREM', key_rq_queue(f.queue), -1, turn) -- it is being claimed
  return read_turn(turn)
end

local function take(turn, f) -- @often
  if f.status == 'failed' then f = as_it_runs_again(turn, f) end
  if not f then return end
  local session, status = f.session, f.status
  if status == 'retrying' and tonumber(f.retry_at) > now then return end
  if status ~= 'queued' and status ~= 'retrying' then return stay(turn, status, now) end
  if redis.call('LINDEX', key_inbox(session), 0) ~= turn then return end
  local s = redis.call('HMGET', key_session(session), unpack(OF_SESSION))
  local seq, holder = table.remove(s), table.remove(s)
  if (s[1] or '') ~= '' then return end
  if only == '' and app ~= '' and string.find(f.lacking or '', app, 1, true) then return table.insert(left, turn) end
  -- RQ's scheduler has offered a retry: its tenant may have to wait for a place.
  if status == 'retrying' and share_of(f.tenant, f.priority) then return offer(session, turn, now, true) end
  if only ~= '' and redis.call('HGET', key_rq_job(turn), 'status') == 'canceled' then return redis.call('ZADD', key_active(), now, session) end
  if tonumber(f.crashes) >= 2 and only == '' then
    if #alone >= tonumber(max_alone) then return table.insert(left, turn) end
    redis.call('ZADD', key_active(), now + start_alone_ms, session)
    hold(session, holder, 'alone-' .. token)
    redis.call('HSET', key_session(session), 'holder', worker)
    alone[#alone + 1] = turn
    return
  end
  last_fence = last_fence and last_fence + 1 or redis.call('INCRBY', key_fence(), max) - max + 1 -- all that the call may need
  s[1], s[2] = last_fence .. '-' .. token, f.cancel or ''
  local is_new = f.run == '1' and f.attempt == '0' and not f.started_at -- it has no journal
  f.attempt = string.format('%d', f.attempt + 1)
  if (f.app or '') == '' then f.app = (s[13] or '') == '' and not promotions and app or '' end
  redis.call('ZADD', key_active(), now + lease_ms, session)
  seq = publish(session, now, {event_body('turn_started', session, turn, f.run,
    ',"attempt":' .. f.attempt .. ',"step":' .. f.step .. ',"worker":' .. json_text(worker))}, seq, 'fence', s[1],
    'holder', worker, 'lease', now + lease_ms, 'turn', turn, 'batch', 0, 'stop', s[2])
  hold(session, holder, s[1])
  f.execution, f.worker, f.started_at = s[1], worker, tonumber(f.started_at or '') and f.started_at or now
  redis.call('HSET', key_turn(turn), 'status', 'running', 'attempt', f.attempt, 'first_seq', f.first_seq or seq,
    'started_at', f.started_at, 'worker', worker, 'execution', s[1], 'app', f.app)
  rq_view(turn, 'running', now, nil, f)
  turns[#turns + 1] = load(session, turn, s, f, now, is_new)
end

-- Release the session of a turn that could not be taken. In an outage it goes back to where it was, before what is popped.
local function undo(turn, f, problem, queue)
  local fence = redis.pcall('HGET', key_session(f.session), 'fence')
  if type(fence) == 'string' and string.sub(fence, -#token) == token then let_go(f.session) end
  if is_outage(problem) then
    popped[#popped + 1] = turn
    redis.pcall('LPUSH', key_rq_queue(queue or f.queue), unpack(popped))
  end
  error(problem, 0)
end

-- A turn with damaged data is left to the reaper, and its session is released. Returns whether it is a turn.
local function try(turn, queue) -- @often
  local f
  local done, why = guarded(function()
    f = read_turn(turn)
    if not f then return end
    if popped[1] and share_of(f.tenant, f.priority) then redis.call('LPUSH', key_rq_queue(queue), table.remove(popped)) end -- others may enter
    local taken_whole, problem = pcall(take, turn, f)
    if not taken_whole then undo(turn, f, problem, queue) end
  end)
  if not done and f and set_aside(f.session, now, why) then damaged[#damaged + 1] = {f.session, turn, why} end
  if f then make_room(f, now) end
  return f or not done
end

if only ~= '' then
  redis.call('LREM', key_rq_queue(redis.call('HGET', key_turn(only), 'queue') or ''), 0, only)
  try(only)
  return {'CLAIMED', turns, foreign, alone, damaged, others, promotions or nil}
end
for i = 1, #queues do
  local queue, id, theirs = queues[i], true, nil -- whose the turns of another prefix are
  left = {}
  for _ = 1, MOST_ENTRIES do
    if #turns + #foreign + #alone >= tonumber(max) then break end
    if not popped[1] then popped = redis.call('LPOP', key_rq_queue(queue), 2) or {} end -- of more, high priority would come later
    id = table.remove(popped, 1)
    if not id then break end
    if not try(id, queue) then
      local prefix = other_prefix(id)
      if prefix then
        left[#left + 1] = id
        theirs = prefix
      else
        foreign[#foreign + 1] = foreign_job(id, queue, worker, now)
      end
    end
  end
  if popped[1] then redis.call('LPUSH', key_rq_queue(queue), table.remove(popped)) end
  if theirs then others[#others + 1] = {queue, theirs} end
  for n = #left, 1, -1 do redis.call('LPUSH', key_rq_queue(queue), left[n]) end
  if id and redis.call('LLEN', key_rq_queue(queue)) > #left then ring(queue) end
end
return {'CLAIMED', turns, foreign, alone, damaged, others, promotions or nil}
