-- Change a session outside its turns: its fields, the end of its history, new messages, events. All or nothing.
-- `op` names the call, so that a repetition is recognised. `length` and the old values of the fields are what the caller has read.
-- An edit that finds a running turn goes before the turn that waits behind it.
-- An empty `ttl_ms` changes nothing.
-- @args session op ttl_ms session_limit when length keep field_count message_count rest...    fields as name, old, new; then messages; then event bodies
-- -> OK, last seq          (also for a repetition)
-- -> BUSY, turn            to wait for: with `when` idle the last turn of the inbox, with between the one that has begun
-- -> CONFLICT              the session is not what the caller has read
-- -> SESSION_CLOSED
-- -> FULL, limit           Redis has as many as this limit allows
-- @include publish rq_view life shares inbox memories cut ends
local KEPT_EVENTS, KEPT_OPS = 10000, 16
local fields, history = key_session(session), key_history(session)
local head = redis.call('LINDEX', key_inbox(session), 0)
if not head then begin_anew(session) end
local known = redis.call('HMGET', fields, 'ops', 'seq', 'closed', 'created', 'ends')
local ops = known[1] or ''
if string.find(ops, op, 1, true) then return {'OK', known[2]} end
if known[3] then return {'SESSION_CLOSED'} end
if not known[4] and redis.call('ZCARD', key_sessions()) >= tonumber(session_limit) then return {'FULL', 'sessions'} end
if head and when == 'idle' then return {'BUSY', redis.call('LINDEX', key_inbox(session), -1)} end
if head and when == 'between' and redis.call('HEXISTS', key_turn(head), 'first_seq') == 1 then
  redis.call('HSET', fields, 'edit_waits', 1)
  return {'BUSY', head}
end
if length ~= '' and redis.call('LLEN', history) ~= tonumber(length) then return {'CONFLICT'} end
local last_field = 3 * field_count
for i = 1, last_field, 3 do
  if (redis.call('HGET', fields, rest[i]) or '') ~= rest[i + 1] then return {'CONFLICT'} end
end

local now, bodies, before, ends = now_ms(), {}, redis.call('LLEN', history), {}
redis.call('HSET', fields, 'ops', string.sub(op .. ' ' .. ops, 1, KEPT_OPS * (#op + 1)))
if not known[4] then redis.call('HSET', fields, 'created', now, 'life', life_of(now, op)) end
if ttl_ms ~= '' then redis.call('HSET', fields, 'ttl', ttl_ms) end
if keep ~= '' then
  redis.call('HSET', fields, 'shortened', 1) -- on purpose: a longer archived copy may be replaced
  cut(session, keep)
end
for i = 1, last_field, 3 do
  if rest[i + 2] == '' then
    redis.call('HDEL', fields, rest[i])
  else
    redis.call('HSET', fields, rest[i], rest[i + 2])
  end
end
for i = last_field + 1, #rest do
  if i <= last_field + message_count then
    redis.call('RPUSH', history, rest[i])
  else
    bodies[#bodies + 1] = rest[i]
  end
end
local seq = publish(session, now, bodies)
note_ends(ends, known[5], seq - #bodies, before, keep ~= '' and tonumber(keep) < before and tonumber(keep), seq, redis.call('LLEN', history))
if #ends > 0 then redis.call('HSET', fields, unpack(ends)) end
if when ~= 'any' then redis.call('HDEL', fields, 'edit_waits') end
if head and when == 'between' and redis.call('HGET', key_turn(head), 'status') == 'waiting' then
  ready(session, now, false, head)
elseif not head then
  redis.call('XTRIM', key_events(session), 'MAXLEN', KEPT_EVENTS)
  release_session(session, now)
end
return {'OK', seq}
