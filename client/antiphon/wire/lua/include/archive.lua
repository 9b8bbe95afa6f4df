-- Shared by the scripts of archived sessions. If `seq_floor` exists, an archive is in use.

-- No session that begins anew uses a seq that this one has used.
local function raise_floor(session)
  local seq, floor = redis.call('HGET', key_session(session), 'seq') or '0', redis.call('GET', key_seq_floor())
  if not floor or tonumber(seq) > tonumber(floor) then redis.call('SET', key_seq_floor(), seq) end
end

-- Whether a copy that the archiver keeps beside a session's own is that session's. Its name begins with 80 signs of the id.
local function is_copy_of(session, copy)
  local stem = string.match(copy, '^(.*)\31')
  return stem == session or stem and #stem >= 80 and string.sub(session, 1, #stem) == stem
end

-- Remove the archived copy of a session a minute later, and those beside it: what is being saved now is saved by then.
local function forget_copies(session, now)
  redis.call('ZADD', key_forget(), now + 60000, session)
  for _, copy in ipairs(redis.call('ZRANGE', key_forget(), 0, -1)) do
    if is_copy_of(session, copy) then redis.call('ZADD', key_forget(), now + 60000, copy) end
  end
end

-- Keep all keys of an unused session for this time; its hash is kept for its own time.
local function live_for(session, ms, hash_ms)
  redis.call('PEXPIRE', key_history(session), ms)
  redis.call('PEXPIRE', key_events(session), ms)
  redis.call('PEXPIRE', key_media(session), ms)
  redis.call('PEXPIRE', key_turns(session), ms)
  redis.call('PEXPIRE', key_session(session), hash_ms)
end
