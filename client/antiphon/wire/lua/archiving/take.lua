-- Find the archiver's next piece of work: a deleted session whose copy must go, or a session that ends soon and must be saved.
-- The same work is not given out again within a minute, and a session to be saved is kept at least that long.
-- With `put_off` above 0, no work is given out: up to that many sessions only get the extra time.
-- The first write is a ZREM, so that it works at full memory. A repeated call gives the next piece of work.
-- @args put_off
-- -> FORGET, session
-- -> UNASKED, session      it began anew: what the store has of it must be restored first
-- -> ENDING, session, version, ms that it would have lived on, fields, history
-- -> LATE, session         its history had ended before it was saved
-- -> NOTHING
-- -> MORE                  so many were looked at: call again
-- @include life inbox archive damage
local MINUTE_MS = 60000
local now, most = now_ms(), tonumber(put_off) > 0 and tonumber(put_off) or 100

local function again(key, member, ms)
  redis.call('ZREM', key, member)
  redis.call('ZADD', key, now + ms, member)
end

-- What to do with a session. One that is in use, or already archived as it is, comes back when it changes.
local function work_on(session)
  local life = redis.call('PTTL', key_session(session))
  local f = redis.call('HMGET', key_session(session), 'archived', 'restored', 'ttl')
  local version = version_of(session)
  if life < 0 or f[1] == version then return redis.call('ZREM', key_ending(), session) and nil end
  local left, lead = life - HASH_LIVES_ON_MS, lead_of(tonumber(f[3] or DEFAULT_TTL_MS))
  if left <= 0 then
    redis.call('ZREM', key_ending(), session)
    raise_floor(session)
    return {'LATE', session}
  end
  if left > lead then return again(key_ending(), session, left - lead) end
  again(key_ending(), session, MINUTE_MS)
  live_for(session, lead, lead + HASH_LIVES_ON_MS)
  if tonumber(put_off) > 0 or redis.call('ZSCORE', key_forget(), session) then return end
  if f[2] ~= '1' then return {'UNASKED', session} end
  raise_floor(session)
  return {'ENDING', session, version, left, redis.call('HGETALL', key_session(session)),
    redis.call('LRANGE', key_history(session), 0, -1)}
end

local function due(key)
  return redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, 1)[1]
end

local forget = put_off == '0' and due(key_forget())
if forget then
  again(key_forget(), forget, MINUTE_MS)
  return {'FORGET', forget}
end
for _ = 1, most do
  local session = due(key_ending())
  if not session then return {'NOTHING'} end
  local work
  local done, why = guarded(function() work = work_on(session) end)
  if work then return work end
  if not done then
    again(key_ending(), session, MINUTE_MS)
    quarantine(session, now, why)
  end
end
return {'MORE'}
