-- All that a worker needs to run a turn it has claimed. Of the history, the last `tail` messages; with -1 all of
-- them, with -2 those from where the session's window began last time ("<index>:<tokens>"), or its summary ends.
local function load(session, turn)
  local s = redis.call('HMGET', key_session(session), 'fence', 'stop', 'system', 'variables', 'agent', 'window',
    'summary', 'restored', 'refused')
  local t = redis.call('HMGET', key_turn(turn), 'request', 'run', 'attempt', 'crashes', 'errors', 'step', 'queue',
    'queued_seq', 'tail')
  local tail = tonumber(table.remove(t) or -1) or -1
  local first = tail == -2 and tonumber(string.match(s[6] or s[7] or '0', '^%d+')) or tail == -1 and 0 or -tail
  local history = tail == 0 and {} or redis.call('LRANGE', key_history(session), first, -1)
  return {
    session, turn, s, t,
    redis.call('LRANGE', key_journal(turn), 0, -1),
    history,
    redis.call('LLEN', key_history(session)),
  }
end
