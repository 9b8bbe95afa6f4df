-- All that a worker needs to run a turn it has claimed. Of the history, the last `tail` messages; with -1 all of
-- them, with -2 those from where the session's window began last time ("<index>:<tokens>"), or its summary ends.
local function load(session, turn)
  local tail = tonumber(redis.call('HGET', key_turn(turn), 'tail') or -1)
  local seen = redis.call('HMGET', key_session(session), 'window', 'summary')
  local first = tail == -2 and tonumber(string.match(seen[1] or seen[2] or '0', '^%d+')) or tail == -1 and 0 or -tail
  local history = tail == 0 and {} or redis.call('LRANGE', key_history(session), first, -1)
  return {
    session, turn,
    redis.call('HMGET', key_session(session), 'fence', 'stop', 'system', 'variables', 'agent', 'window', 'summary',
      'restored', 'refused'),
    redis.call('HMGET', key_turn(turn), 'request', 'run', 'attempt', 'crashes', 'errors', 'step', 'queue',
      'queued_seq'),
    redis.call('LRANGE', key_journal(turn), 0, -1),
    history,
    redis.call('LLEN', key_history(session)),
  }
end
