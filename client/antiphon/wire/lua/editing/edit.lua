-- Change a session outside its turns: its fields, the end of its history, new messages, events. All or nothing.
-- `op` names the call; the last few are known. The length of the history and the old values of the fields are what the caller has read.
-- An edit that finds a turn at work is the next one: the turn behind that one lets it through.
-- @args session op ttl_ms when length keep field_count message_count rest...    fields as name, old, new; then messages; then event bodies
-- -> OK, last seq          (also for a repetition)
-- -> BUSY, turn            to wait for: with `when` idle the last turn of the inbox, with between the one that has begun
-- -> CONFLICT              the session is not what the caller has read
-- -> SESSION_CLOSED
-- @include publish rq_view life inbox
local KEPT_EVENTS, KEPT_OPS = 10000, 16
local fields, history = key_session(session), key_history(session)
local head = redis.call('LINDEX', key_inbox(session), 0)
if not head then begin_anew(session) end
local known = redis.call('HMGET', fields, 'ops', 'seq', 'closed')
local ops = known[1] or ''
if string.find(ops, op, 1, true) then return {'OK', known[2]} end
if known[3] then return {'SESSION_CLOSED'} end
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

local now, bodies = now_ms(), {}
redis.call('HSET', fields, 'ops', string.sub(op .. ' ' .. ops, 1, KEPT_OPS * (#op + 1)))
redis.call('HSETNX', fields, 'created', now)
redis.call('HSETNX', fields, 'ttl', ttl_ms)
if keep ~= '' then
  redis.call('HDEL', fields, 'window')
  redis.call('HSET', fields, 'shortened', 1) -- on purpose: a longer archived copy may be replaced
  local summed_up = string.match(redis.call('HGET', fields, 'summary') or '0', '^%d+')
  if tonumber(summed_up) > tonumber(keep) then redis.call('HDEL', fields, 'summary') end
  redis.call('LTRIM', history, 0, keep - 1)
  if keep == '0' then redis.call('DEL', history) end
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
if when ~= 'any' then redis.call('HDEL', fields, 'edit_waits') end
if head and when == 'between' and redis.call('HGET', key_turn(head), 'status') == 'waiting' then
  offer(session, head, now)
elseif not head then
  redis.call('XTRIM', key_events(session), 'MAXLEN', KEPT_EVENTS)
  release_session(session, now)
end
return {'OK', seq}
