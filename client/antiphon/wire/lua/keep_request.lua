-- Keep a request to a model, as the holder of its turn has sent it. `name` counts the requests: a repetition changes nothing.
-- Where the requests of the turn have more than `most_bytes`, `brief` takes its place.
-- @args session turn fence name request brief most most_bytes lasts_ms
-- -> KEPT
-- -> FULL                  the turn has `most` requests
-- -> SUPERSEDED
-- @include holder
if not holds(session, fence) then return {'SUPERSEDED'} end
local key = key_requests(turn)
if redis.call('HEXISTS', key, name) == 1 then return {'KEPT'} end
if redis.call('HLEN', key) > tonumber(most) then return {'FULL'} end
local bytes = tonumber(redis.call('HGET', key, 'bytes') or 0) or 0
local kept = bytes + #request > tonumber(most_bytes) and brief or request
redis.call('HSET', key, name, kept, 'bytes', bytes + #kept)
redis.call('PEXPIRE', key, lasts_ms)
return {'KEPT'}
