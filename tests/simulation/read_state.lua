-- Everything that a step of a schedule can have changed, in one answer. Test only: it spells the keys by itself.
-- ARGV: JSON of {sessions = {{id, first seq to read}}, turns = {{id, queue}}, workers = {id}, queues = {name}}
local ask = cjson.decode(ARGV[1])
local found = {{}, {}, {}, {}, {}}
for i, pair in ipairs(ask.sessions) do
  local s = pair[1]
  found[1][i] = {
    redis.call('HMGET', 'ant:session:' .. s, 'fence', 'holder', 'lease', 'seq', 'stop', 'batch'),
    redis.call('LRANGE', 'ant:inbox:' .. s, 0, -1),
    redis.call('LRANGE', 'ant:history:' .. s, 0, -1),
    redis.call('XRANGE', 'ant:events:' .. s, pair[2], '+'),
    redis.call('ZSCORE', 'ant:active', s),
    {redis.call('PTTL', 'ant:session:' .. s), redis.call('PTTL', 'ant:history:' .. s), redis.call('PTTL', 'ant:events:' .. s)},
    redis.call('XRANGE', 'ant:events:' .. s, '-', '+', 'COUNT', 1),
    redis.call('HGET', 'ant:turn:' .. (redis.call('LINDEX', 'ant:inbox:' .. s, 0) or ''), 'first_seq'),
    redis.call('HGET', 'ant:session:' .. s, 'restored'),
  }
end
for i, pair in ipairs(ask.turns) do
  local t, q = pair[1], pair[2]
  local registries = {}
  for n, name in ipairs({'deferred', 'scheduled', 'finished', 'failed', 'canceled'}) do
    registries[n] = redis.call('ZSCORE', 'rq:' .. name .. ':' .. q, t) and 1 or 0
  end
  found[2][i] = {
    redis.call('HMGET', 'ant:turn:' .. t, 'status', 'run', 'attempt', 'crashes', 'errors', 'cancel'),
    redis.call('LRANGE', 'ant:journal:' .. t, 0, -1),
    redis.call('HGET', 'rq:job:' .. t, 'status'),
    registries,
    {redis.call('PTTL', 'ant:turn:' .. t), redis.call('PTTL', 'rq:job:' .. t)},
    redis.call('ZSCORE', 'ant:due', t),
  }
end
for i, w in ipairs(ask.workers) do found[3][i] = redis.call('HGETALL', 'ant:held:' .. w) end
for i, q in ipairs(ask.queues) do
  found[4][i] = {redis.call('LRANGE', 'rq:queue:' .. q, 0, -1), redis.call('ZRANGE', 'rq:wip:' .. q, 0, -1, 'WITHSCORES')}
end
found[5] = {redis.call('ZCARD', 'ant:active'), redis.call('ZCARD', 'ant:due'), redis.call('HKEYS', 'ant:quarantined')}
return found
