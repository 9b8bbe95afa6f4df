-- The end of a session's life. Its hash is kept for another hour, so that no seq is used twice while an older event is kept.
-- The other fields then belong to a life that is over: a session that is used in that hour begins anew.
-- Returns a word that differs after every change of a session.
local function version_of(session)
  local f = redis.call('HMGET', key_session(session), 'seq', 'updated', 'ops', 'due_until')
  return (f[1] or '') .. ' ' .. (f[2] or '') .. ' ' .. string.match(f[3] or '', '^%S*') .. ' ' .. (f[4] or '')
end

-- Whether everything of a session but its hash has expired. All keys of an unchanged archived session expire together.
local function is_over(session)
  local life = redis.call('PTTL', key_session(session))
  return life >= 0 and life <= HASH_LIVES_ON_MS
    and redis.call('HGET', key_session(session), 'archived') ~= version_of(session)
end

-- Which session of its id this is, for `life`: `by` is the call that begins it, of which the end is enough.
local function life_of(now, by)
  return string.format('%d-', now) .. string.sub(by, -8)
end

-- Leave out one seq between two lives, so that no event of the new one follows a cursor of the former one. The first write
-- is an HSET, which is refused at full memory.
local function leave_gap(session, seq, ...)
  seq = string.format('%.0f', (tonumber(seq or 0) or 0) + 1)
  redis.call('HSET', key_session(session), 'first', seq, 'seq', seq, ...)
end

-- The one place where a session begins anew under the hash of its former life. Only the seq stays, and goes on from there;
-- `first` makes a cursor of the former life a gap. That of a deleted session has left its gap. Returns whether it has begun.
local function begin_anew(session)
  if not is_over(session) then return false end
  local fields = key_session(session)
  local f = redis.call('HMGET', fields, 'seq', 'created')
  if f[2] then leave_gap(session, f[1], 'earlier', 1) end -- turns of an earlier session may be kept
  for _, name in ipairs(redis.call('HKEYS', fields)) do
    if name ~= 'seq' and name ~= 'first' and name ~= 'earlier' then redis.call('HDEL', fields, name) end
  end
  if redis.call('EXISTS', key_seq_floor()) == 1 then redis.call('HSET', fields, 'archived', '') end
  redis.call('DEL', key_history(session), key_events(session), key_turns(session), key_media(session), key_spent('session::' .. session))
  return true
end
