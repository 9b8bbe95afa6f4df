-- Accept a turn: it enters its session's inbox, or waits until it is due.
-- The turn id is made by the client, so that a repeated call finds the first one's turn.
-- @args session turn digest request queue ttl_ms inbox_limit busy due_in_ms tail agent metadata
-- -> ACCEPTED, position    (also for a repetition)
-- -> KEY_REUSED            the id belongs to another request
-- -> SESSION_BUSY          the inbox is not empty and the caller asked to be refused then
-- -> INBOX_FULL, length
-- -> SESSION_CLOSED
-- @include publish rq_view inbox
local known = redis.call('HMGET', key_turn(turn), 'digest', 'session', 'position')
if known[1] then
  if known[1] == digest and known[2] == session then return {'ACCEPTED', known[3]} end
  return {'KEY_REUSED'}
end
if redis.call('HGET', key_session(session), 'closed') then return {'SESSION_CLOSED'} end
local length = redis.call('LLEN', key_inbox(session))
if length > 0 and busy == 'reject' then return {'SESSION_BUSY'} end
if length >= tonumber(inbox_limit) then return {'INBOX_FULL', length} end

local now, due_in = now_ms(), tonumber(due_in_ms)
redis.call('HSET', key_turn(turn), 'session', session, 'digest', digest, 'request', request, 'queue', queue,
  'status', 'queued', 'run', 1, 'attempt', 0, 'crashes', 0, 'errors', 0, 'step', 1, 'tail', tail, 'queued_at', now,
  'agent', agent, 'metadata', metadata, 'position', length)
redis.call('HSETNX', key_session(session), 'created', now)
redis.call('HSETNX', key_session(session), 'ttl', ttl_ms)
if agent ~= '' then redis.call('HSETNX', key_session(session), 'agent', agent) end
redis.call('ZADD', key_sessions(), now + math.max(0, tonumber(ttl_ms)), session)
if due_in > 0 then
  redis.call('ZADD', key_due(), now + due_in, turn)
  redis.call('HSET', key_turn(turn), 'due_at', now + due_in)
  local due_until = tonumber(redis.call('HGET', key_session(session), 'due_until') or 0)
  redis.call('HSET', key_session(session), 'due_until', math.max(due_until, now + due_in))
  if length == 0 then release_session(session, now) end
  rq_view(turn, 'delayed', now, now + due_in)
  return {'ACCEPTED', length}
end
return {'ACCEPTED', enter_inbox(session, turn, 1, now)}
