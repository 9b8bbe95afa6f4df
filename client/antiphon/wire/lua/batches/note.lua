-- Note what became of a batch. It is about to be `sending`, with as many requests as `said`; was `sent` under the id `said`; is `running`; is
-- looked at `later`, also because an answer of the service was `unread`; is looked for again because the one found as `said` is `another`; is
-- sent `again` because the service has run no step; or is `over`. It is due again in `ms`. Once it is running, its requests go. The first write
-- is a ZADD or, where it is over, a ZREM.
-- @args label fence what said ms
-- -> OK
-- -> SUPERSEDED            another worker holds the batch, or it is over
-- @include
if redis.call('HGET', key_batch(label), 'fence') ~= fence then return {'SUPERSEDED'} end
local steps = (what == 'over' or what == 'running') and redis.call('LRANGE', key_batch_steps(label), 0, -1) or {}
if what == 'over' then
  redis.call('ZREM', key_batches(), label)
  for _, id in ipairs(steps) do redis.call('DEL', key_batch_step(id)) end
  redis.call('DEL', key_batch(label), key_batch_steps(label))
  return {'OK'}
end
redis.call('ZADD', key_batches(), now_ms() + ms, label)
for _, id in ipairs(steps) do redis.call('HDEL', key_batch_step(id), 'body') end
if what == 'sending' then
  redis.call('HSET', key_batch(label), 'sending', said)
elseif what == 'sent' then
  redis.call('HSET', key_batch(label), 'service_id', said)
elseif what == 'unread' then
  redis.call('HINCRBY', key_batch(label), 'unread', 1)
elseif what == 'another' and redis.call('HDEL', key_batch(label), 'service_id') == 1 then
  local others = redis.call('HGET', key_batch(label), 'others')
  redis.call('HSET', key_batch(label), 'others', others and others .. ' ' .. said or said)
elseif what == 'again' and redis.call('HDEL', key_batch(label), 'service_id') == 1 then
  redis.call('HDEL', key_batch(label), 'sending')
  redis.call('HINCRBY', key_batch(label), 'round', 1)
end
return {'OK'}
