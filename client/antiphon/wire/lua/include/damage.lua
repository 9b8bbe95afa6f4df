-- A damaged key or field harms its session alone. `quarantined` holds what cannot go on, with the time and the reason. It
-- is checked again once a minute, and goes on by itself when the damage is mended.
local QUARANTINE_MS = 60000
local OF_THE_SERVER = {'OOM', 'READONLY', 'MISCONF', 'NOREPLICAS', 'MASTERDOWN', 'NOPERM'}
-- Of a turn: words and numbers that are always there, numbers that may be.
local CHECKED = {'session', 'status', 'queue', 'crashes', 'run', 'step', 'attempt', 'errors', 'retry_at', 'queued_seq', 'tail'}

local function is_whole(key, kind, counts)
  local found = redis.call('TYPE', key).ok
  if found == 'none' then return true end
  return found == kind and (not counts or string.find(redis.call('GET', key), '^%d+$') ~= nil)
end

-- Whether the keys are whole that all sessions share.
local function shared_keys_are_whole()
  for key, shared in pairs(SHARED_KEYS) do
    if not is_whole(key, shared[1], shared[2]) then return false end
  end
  for _, queue in ipairs(redis.call('SMEMBERS', key_rq_queues())) do
    for stem, kind in pairs(SHARED_STEMS) do
      if not is_whole(stem .. string.sub(queue, #key_rq_queue('') + 1), kind) then return false end
    end
  end
  return true
end

-- Whether an error is no fault of one session: it is of the server, or a key is damaged that all sessions share.
local function is_outage(problem)
  local why = type(problem) == 'table' and problem.err or tostring(problem)
  for _, word in ipairs(OF_THE_SERVER) do
    if string.find(string.sub(why, 1, 60), word, 1, true) then return true end
  end
  return not shared_keys_are_whole()
end

-- Do this for one session. Returns true and what it returns, or false and what is wrong with its data. An outage is raised.
local function guarded(work, ...)
  local done, problem = pcall(work, ...)
  if done then return true, problem end
  if is_outage(problem) then error(problem, 0) end
  return false, string.sub(type(problem) == 'table' and problem.err or tostring(problem), 1, 200)
end

-- Returns whether that is new.
local function quarantine(name, now, why)
  return redis.call('HSETNX', key_quarantined(), name, string.format('%.0f ', now) .. why) == 1
end

local function set_aside(session, now, why)
  redis.call('ZADD', key_active(), now + QUARANTINE_MS, session)
  return quarantine(session, now, why)
end

-- The fields of a turn by their names, and nil where there is no such turn. Raises what is wrong with them. To read all of
-- them costs less than to look for those that most turns do not have.
local function read_turn(turn) -- @often
  local f, all = {}, redis.call('HGETALL', key_turn(turn))
  for i = 1, #all, 2 do f[all[i]] = all[i + 1] end
  if not all[1] then return nil end
  for i, name in ipairs(CHECKED) do
    local there, number = f[name] or i > 8, i > 3 and f[name]
    if name == 'queue' and not string.find(f.queue or '', '^[%w_.-]+$') then there = nil end
    if not there or number and (#number > 15 or not string.find(number, '^%-?%d+$')) then
      error({err = 'The field ' .. name .. ' of the turn ' .. turn .. ' is damaged.'}, 0)
    end
  end
  return f
end
