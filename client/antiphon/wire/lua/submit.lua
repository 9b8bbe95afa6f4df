-- Accept a turn: it enters its session's inbox, or waits until it is due.
-- The turn id is made by the client, so that a repeated call finds the first one's turn.
-- Its queue is the one that it names, else the session's, its agent's, the one of the session's agent, the default.
-- @args session turn digest request queue agent_queue default_queue ttl_ms inbox_limit busy due_in_ms tail agent metadata tenant
-- -> ACCEPTED, position    (also for a repetition)
-- -> KEY_REUSED            the id belongs to another request
-- -> SESSION_BUSY          the inbox is not empty and the caller asked to be refused then
-- -> INBOX_FULL, length
-- -> SESSION_CLOSED
-- -> OTHER_TENANT          the session belongs to another one
-- -> TOO_MANY_DELAYED      as many turns as may be are not due yet
-- -> OUT_OF_RANGE          no Redis can wait or keep that long
-- @include publish rq_view life inbox
local KEPT_TURNS = 1000
local MOST_DELAYED = 100000
local now, due_in, life = now_ms(), tonumber(due_in_ms), tonumber(ttl_ms)
for _, ms in ipairs({due_in or -1, life or -1}) do
  if not (ms >= 0 and ms <= FOR_EVER_MS) then return {'OUT_OF_RANGE'} end
end
local known = redis.call('HMGET', key_turn(turn), 'digest', 'session', 'position')
if known[1] then
  if known[1] == digest and known[2] == session then return {'ACCEPTED', known[3]} end
  return {'KEY_REUSED'}
end
local length = redis.call('LLEN', key_inbox(session))
if length == 0 then begin_anew(session) end
local kept = redis.call('HMGET', key_session(session), 'closed', 'tenant', 'queue', 'agent_queue', 'agent', 'created',
  'ttl', 'seq')
if kept[1] then return {'SESSION_CLOSED'} end
if tenant ~= '' and (kept[2] or tenant) ~= tenant then return {'OTHER_TENANT'} end
if length > 0 and busy == 'reject' then return {'SESSION_BUSY'} end
if due_in > 0 and redis.call('ZCARD', key_due()) >= MOST_DELAYED then return {'TOO_MANY_DELAYED'} end
if length >= tonumber(inbox_limit) then return {'INBOX_FULL', length} end

local home = kept[3] or agent_queue ~= '' and agent_queue or kept[4]
local first_named = queue ~= '' and not home -- it becomes the session's
if queue == '' then queue = home or default_queue end
redis.call('HSET', key_turn(turn), 'session', session, 'digest', digest, 'request', request, 'queue', queue,
  'status', 'queued', 'run', 1, 'attempt', 0, 'crashes', 0, 'errors', 0, 'step', 1, 'tail', tail, 'queued_at', now,
  'agent', agent, 'metadata', metadata, 'position', length)
local first = {} -- what the session keeps from now on
local function keep(field, value)
  first[#first + 1], first[#first + 2] = field, value
end
if not kept[6] then keep('created', now) end
if not kept[7] then keep('ttl', ttl_ms) end
if agent ~= '' and not kept[5] then
  keep('agent', agent)
  if agent_queue ~= '' then keep('agent_queue', agent_queue) end
end
if first_named then keep('queue', queue) end
if tenant ~= '' and not kept[2] then keep('tenant', tenant) end
if #first > 0 then redis.call('HSET', key_session(session), unpack(first)) end
if redis.call('RPUSH', key_turns(session), turn) > KEPT_TURNS then redis.call('LPOP', key_turns(session)) end
list_session(session, now, life)
if due_in > 0 then
  redis.call('ZADD', key_due(), now + due_in, turn)
  redis.call('HSET', key_turn(turn), 'due_at', now + due_in)
  local due_until = tonumber(redis.call('HGET', key_session(session), 'due_until') or 0)
  redis.call('HSET', key_session(session), 'due_until', math.max(due_until, now + due_in))
  if length == 0 then release_session(session, now) end
  rq_view(turn, 'delayed', now, now + due_in)
  return {'ACCEPTED', length}
end
return {'ACCEPTED', enter_inbox(session, turn, 1, now, kept[8] or begin_seq(session), true)}
