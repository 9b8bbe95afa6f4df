-- Find the archiver's next piece of work: a deleted session whose copy must go, or a session that ends soon and must be saved.
-- Nobody is given the same again within a minute, and what is to be saved lives on until then and longer.
-- With `put_off` above 0 nothing is given away: up to so many sessions are only given that time.
-- First write is a ZREM, so that it works at full memory. Repeated, it gives the next piece of work.
-- @args put_off
-- -> FORGET, session
-- -> UNASKED, session      it began anew: what the store has of it must be restored first
-- -> ENDING, session, version, ms that it would have lived on, fields, history
-- -> LATE, session         its history had ended before it was saved
-- -> NOTHING
-- -> MORE                  so many were looked at: call again
-- @include archive
local MINUTE_MS, SHORTEST_LEAD_MS, DAY_MS, DEFAULT_TTL_MS = 60000, 600000, 86400000, 2592000000
local now, most = now_ms(), tonumber(put_off) > 0 and tonumber(put_off) or 100
local reach = now + DAY_MS

local function again(key, member, at)
  redis.call('ZREM', key, member)
  redis.call('ZADD', key, at, member)
end

-- How long before its end a session is saved, and how long it lives from each attempt on.
local function lead_of(session)
  local ttl = tonumber(redis.call('HGET', key_session(session), 'ttl') or DEFAULT_TTL_MS)
  return math.max(SHORTEST_LEAD_MS, math.min(DAY_MS, math.floor(ttl / 2)))
end

local function work_on(session)
  local life = redis.call('PTTL', key_session(session))
  if life == -2 then return redis.call('ZREM', key_sessions(), session) and nil end
  if life == -1 then return again(key_sessions(), session, reach + HASH_LIVES_ON_MS) end
  local known = redis.call('HMGET', key_session(session), 'archived', 'restored')
  local version = version_of(session)
  if known[1] == version then return again(key_sessions(), session, reach + life) end
  local left, lead = life - HASH_LIVES_ON_MS, lead_of(session)
  if left <= 0 then
    again(key_sessions(), session, reach + life)
    raise_floor(session)
    redis.call('HDEL', key_session(session), 'restored')
    return {'LATE', session}
  end
  if left > lead then return again(key_sessions(), session, reach + left - lead) end
  again(key_sessions(), session, reach + MINUTE_MS)
  live_for(session, lead, lead + HASH_LIVES_ON_MS)
  if tonumber(put_off) > 0 or redis.call('ZSCORE', key_forget(), session) then return end
  if known[2] ~= '1' then return {'UNASKED', session} end
  raise_floor(session)
  return {'ENDING', session, version, left, redis.call('HGETALL', key_session(session)),
    redis.call('LRANGE', key_history(session), 0, -1)}
end

local forget = redis.call('ZRANGEBYSCORE', key_forget(), '-inf', now, 'LIMIT', 0, 1)[1]
if forget and put_off == '0' then
  again(key_forget(), forget, now + MINUTE_MS)
  return {'FORGET', forget}
end
for _ = 1, most do
  local session = redis.call('ZRANGEBYSCORE', key_sessions(), '-inf', reach, 'LIMIT', 0, 1)[1]
  if not session then return {'NOTHING'} end
  local work = work_on(session)
  if work then return work end
end
return {'MORE'}
