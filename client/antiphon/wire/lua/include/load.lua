-- Everything that a worker needs to run a claimed turn: also the last `tail` messages of the history, with -1 all of them,
-- with -2 those from the start of the session's last window ("<index>:<tokens>") or from the end of its summary; for how many
-- ms the model service has failed in this step, or ''; the ms since its first start without suspensions; what was decided and received then.
local function load(session, turn, now) -- @often
  local s = redis.call('HMGET', key_session(session), 'fence', 'stop', 'system', 'variables', 'agent', 'window',
    'summary', 'restored', 'refused', 'untold', 'usage', 'steer', 'pins', 'ran')
  local t = redis.call('HMGET', key_turn(turn), 'request', 'run', 'attempt', 'crashes', 'errors', 'step', 'queue',
    'queued_seq', 'created', 'queued_at', 'lacking', 'app', 'tenant', 'revision', 'missed_at', 'failing', 'started_at', 'tail', 'waited', 'calls')
  t[15] = (t[15] or '') ~= '' and math.max(0, now - t[15]) or '' -- for how long no worker has had its revision
  local decisions, received, _
  if table.remove(t) then _, decisions, _, received = decided(turn) end
  local waited = tonumber(table.remove(t) or 0) or 0
  local tail = tonumber(table.remove(t) or -1) or -1
  local started = tonumber(table.remove(t) or now) or now
  local step, since = string.match(table.remove(t) or '', '^(%S*) (%d+)$')
  t[#t + 1] = step == t[6] and math.max(0, now - since) or ''
  t[#t + 1] = math.max(0, now - started - waited)
  local first = tail == -2 and tonumber(string.match(s[6] or s[7] or '0', '^%d+')) or tail == -1 and 0 or -tail
  local history = tail == 0 and {} or redis.call('LRANGE', key_history(session), first, -1)
  local journal = redis.call('LRANGE', key_journal(turn), 0, -1)
  local length = first == 0 and tail ~= 0 and #history or redis.call('LLEN', key_history(session))
  return {session, turn, s, t, journal, history, length, decisions or {}, received or {}}
end
