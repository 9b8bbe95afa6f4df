-- Read a session at one moment: a page of its history, the running turn, and the cursor before its first event.
-- @args session start stop
-- -> OK, cursor, running turn or '', history length, page of history, fields of the session, inbox
-- -> SESSION_NOT_FOUND     also of one whose life is over and whose hash still keeps its seq
-- @include life
local fields = redis.call('HGETALL', key_session(session))
if #fields == 0 then return {'SESSION_NOT_FOUND'} end
local head = redis.call('LINDEX', key_inbox(session), 0) or ''
if head == '' and is_over(session) then return {'SESSION_NOT_FOUND'} end
local first = head ~= '' and redis.call('HGET', key_turn(head), 'first_seq')
local cursor = redis.call('HGET', key_session(session), 'seq') or '0'
if first then cursor = string.format('%.0f', first - 1) else head = '' end
return {'OK', cursor, head, redis.call('LLEN', key_history(session)),
  redis.call('LRANGE', key_history(session), start, stop), fields, redis.call('LRANGE', key_inbox(session), 0, -1)}
