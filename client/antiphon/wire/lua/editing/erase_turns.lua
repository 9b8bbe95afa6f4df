-- Erase turns of a session that have ended, of a user who is erased while others stay. The session no longer lists them, nor
-- the user, and its events go up to the last of theirs; all of them where a title was made of one. The archived copy goes
-- a minute later: it is saved again.
-- The first write is a ZREM of nothing, so that it works at full memory.
-- @args session user turns...
-- -> ERASED, how many
-- -> BUSY, turn            the last one of its inbox
-- @include rq_view erase
local now, erased, seq = now_ms(), 0, 0
local last = redis.call('LINDEX', key_inbox(session), -1)
if last then return {'BUSY', last} end
redis.call('ZREM', key_sessions(), '')
local untold = redis.call('HGET', key_session(session), 'untold') or ''
local titled = redis.call('HGET', key_session(session), 'titled') or ''
for _, turn in ipairs(turns) do
  local ended = tonumber(redis.call('HGET', key_turn(turn), 'last_seq') or 0) or 0
  if erase_turn(session, turn, now) then erased, seq = erased + 1, math.max(seq, ended) end
  redis.call('LREM', key_turns(session), 0, turn)
  if string.find(titled, '"turn_id":"' .. turn .. '"', 1, true) then
    seq, titled = tonumber(redis.call('HGET', key_session(session), 'seq') or 0), ''
  end
  untold = string.gsub(untold, string.gsub(turn, '%-', '%%-') .. ' ', '')
end
if seq > 0 then redis.call('XTRIM', key_events(session), 'MINID', string.format('%.0f', seq + 1)) end
local users = {}
for one in string.gmatch(redis.call('HGET', key_session(session), 'users') or '', '[^\n]+') do
  if one ~= user then users[#users + 1] = one end
end
for name, value in pairs({users = table.concat(users, '\n'), untold = untold, titled = titled}) do
  if value == '' then
    redis.call('HDEL', key_session(session), name)
  else
    redis.call('HSET', key_session(session), name, value)
  end
end
if redis.call('HGET', key_session(session), 'restored') == '1' and redis.call('EXISTS', key_seq_floor()) == 1 then
  redis.call('ZADD', key_forget(), now + 60000, session) -- Redis has all that the copy has
end
return {'ERASED', erased}
