-- Erase turns of a session that have ended, of a user who is erased while others stay. The session no longer lists them, nor
-- the user, and its events go up to the last of theirs; all of them where a title was made of one. The archived copy goes
-- a minute later: it is saved again.
-- The first write is a ZREM of nothing, so that it works at full memory.
-- @args session user turns...
-- -> ERASED, how many
-- -> BUSY, turn            the last one of its inbox
-- @include rq_view archive erase
local now, erased, theirs, named = now_ms(), 0, {}, false
local last = redis.call('LINDEX', key_inbox(session), -1)
if last then return {'BUSY', last} end
redis.call('ZREM', key_sessions(), '')
local untold = redis.call('HGET', key_session(session), 'untold') or ''
local titled = redis.call('HGET', key_session(session), 'titled') or ''
for _, turn in ipairs(turns) do
  theirs[turn] = true
  if erase_turn(session, turn, now) then erased = erased + 1 end
  redis.call('LREM', key_turns(session), 0, turn)
  if string.find(titled, '"turn_id":"' .. turn .. '"', 1, true) then
    named, titled = true, ''
  end
  untold = string.gsub(untold, string.gsub(turn, '%-', '%%-') .. ' ', '')
end

-- A stream keeps entries that were trimmed, in memory and in files, until all of their node are: so the rest is written anew.
local events, kept_from = redis.call('XRANGE', key_events(session), '-', '+'), 1
for i, event in ipairs(events) do
  if named or theirs[string.match(event[2][2], '"turn_id":"([^"]*)"')] then kept_from = i + 1 end
end
local life = redis.call('PTTL', key_events(session))
redis.call('DEL', key_events(session))
for i = kept_from, #events do redis.call('XADD', key_events(session), events[i][1], unpack(events[i][2])) end
if life > 0 then redis.call('PEXPIRE', key_events(session), life) end

local users = {}
for one in string.gmatch(redis.call('HGET', key_session(session), 'users') or '', '[^\n]+') do
  if one ~= user then users[#users + 1] = one end
end
for name, value in pairs({users = table.concat(users, '\n'), untold = untold, titled = titled, route = ''}) do
  if value == '' then
    redis.call('HDEL', key_session(session), name)
  else
    redis.call('HSET', key_session(session), name, value)
  end
end
if redis.call('HGET', key_session(session), 'restored') == '1' and redis.call('EXISTS', key_seq_floor()) == 1 then
  forget_copies(session, now) -- Redis has all that the copy has
end
return {'ERASED', erased}
