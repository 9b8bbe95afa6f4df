-- Everything that a worker needs to run a claimed turn: of its session `s`, of its own fields `f`, which `read_turn` has
-- read; the last `tail` messages of the history, with -1 all of them, with -2 those from the start of the
-- session's last window ("<index>:<tokens>") or from the end of its summary; for how many ms the model service has failed in
-- this step, or ''; the ms since its first start without suspensions; what was decided and received then. One that `is_new` has no journal.
local OF_SESSION = {'fence', 'stop', 'system', 'variables', 'agent', 'window', 'summary', 'restored', 'refused', 'untold',
  'usage', 'steer', 'pins', 'ran', 'holder', 'seq'} -- the last two are not for the worker
local OF_TURN = {'request', 'run', 'attempt', 'crashes', 'errors', 'step', 'queue', 'queued_seq', 'created', 'queued_at',
  'lacking', 'app', 'tenant', 'revision'}

local function load(session, turn, s, f, now, is_new) -- @often
  local t = {}
  for i, name in ipairs(OF_TURN) do t[i] = f[name] or false end
  local missed, step, since = tonumber(f.missed_at or ''), string.match(f.failing or '', '^(%S*) (%d+)$')
  t[#t + 1] = missed and math.max(0, now - missed) or '' -- for how long no worker has had its revision
  t[#t + 1] = step == f.step and math.max(0, now - since) or ''
  t[#t + 1] = math.max(0, now - (tonumber(f.started_at or now) or now) - (tonumber(f.waited or 0) or 0))
  local decisions, received, _
  if f.calls then _, decisions, _, received = decided(turn) end
  local tail = tonumber(f.tail or -1) or -1
  local first = tail == -2 and tonumber(string.match(s[6] or s[7] or '0', '^%d+')) or tail == -1 and 0 or -tail
  local history = tail == 0 and {} or redis.call('LRANGE', key_history(session), first, -1)
  local journal = is_new and {} or redis.call('LRANGE', key_journal(turn), 0, -1)
  local whole = first >= 0 and #history > 0 or first == 0 and tail ~= 0 -- they reach to its end
  local length = whole and first + #history or redis.call('LLEN', key_history(session))
  return {session, turn, s, t, journal, history, length, decisions or {}, received or {}}
end
