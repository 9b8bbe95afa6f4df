-- Accept one turn. Its arguments are those of `submit`.
local OF_ITS_SESSION = {'closed', 'tenant', 'queue', 'agent_queue', 'agent', 'created', 'ttl', 'seq', 'media'}

-- The answer to a call for a turn that Redis has. One that has failed runs again if the call asks for that.
local function known_already(now, known, session, turn, digest, inbox_limit, busy, tenant, again)
  local whole = redis.call('HMGET', key_session(session), 'tenant', 'created')
  local owner = known[6] or whole[1] or whole[2] and '' or tenant
  if tenant ~= '' and owner ~= tenant then return {'OTHER_TENANT'} end
  if known[1] == 'deleted' then return {'TURN_DELETED'} end
  if known[1] ~= digest or known[2] ~= session then return {'KEY_REUSED'} end
  if again == '' or known[4] ~= 'failed' or known[5] == again then return {'ACCEPTED', known[3]} end
  local no = kept_from_running(session, turn)
  if no then return {no} end
  local length = redis.call('LLEN', key_inbox(session))
  if length > 0 and busy == 'reject' then return {'SESSION_BUSY', redis.call('LINDEX', key_inbox(session), 0)} end
  if length >= tonumber(inbox_limit) then return {'INBOX_FULL', length} end
  local stopped = stopped_by(session, busy)
  local position = run_again(session, turn, now, again, stopped)
  if not position then return {'SESSION_CLOSED'} end
  note_user(session, turn, now)
  if stopped then act_on(session, stopped, turn, busy, now) end
  return {'ACCEPTED', position}
end

local function accept(now, session, turn, digest, request, queue, agent_queue, default_queue, ttl_ms, inbox_limit, delayed_limit,
    tenant_limit, session_limit, busy, due_in_ms, tail, agent, named, metadata, tenant, key, input, again, priority, cursor, user,
    user_limit) -- @often
  -- Sub-agents go first: their parents, which wait, end before others begin. Else all turns that were submitted begin, and
  -- wait, before the first one ends.
  local front = priority == 'front' or nil
  if front then priority = '' end
  local due_in, life = tonumber(due_in_ms), tonumber(ttl_ms ~= '' and ttl_ms or DEFAULT_TTL_MS)
  if not (due_in and due_in >= 0 and due_in <= FOR_EVER_MS) then return {'OUT_OF_RANGE'} end
  if not (life and life >= 0 and life <= FOR_EVER_MS) then return {'OUT_OF_RANGE'} end
  local known = redis.call('HMGET', key_turn(turn), 'digest', 'session', 'position', 'status', 'again', 'tenant')
  if known[1] then return known_already(now, known, session, turn, digest, inbox_limit, busy, tenant, again) end
  local kept = redis.call('HMGET', key_session(session), unpack(OF_ITS_SESSION))
  local known_session = kept[6] or kept[8]
  local length = redis.call('LLEN', key_inbox(session))
  if known_session and length == 0 and begin_anew(session) then kept = redis.call('HMGET', key_session(session), unpack(OF_ITS_SESSION)) end
  if tenant ~= '' and (kept[2] or kept[6] and '' or tenant) ~= tenant then return {'OTHER_TENANT'} end
  if kept[1] then return {'SESSION_CLOSED'} end
  if length > 0 and busy == 'reject' then return {'SESSION_BUSY', redis.call('LINDEX', key_inbox(session), 0)} end
  local seq = kept[6] and kept[8] or 0
  if cursor ~= '' and tonumber(seq) ~= tonumber(cursor) then return {'SESSION_CHANGED', seq} end
  if due_in > 0 and redis.call('ZCARD', key_due()) >= tonumber(delayed_limit) then return {'FULL', 'delayed_turns'} end
  if length >= tonumber(inbox_limit) then return {'INBOX_FULL', length} end
  if not kept[6] and redis.call('ZCARD', key_sessions()) >= tonumber(session_limit) then return {'FULL', 'sessions'} end
  local users = user ~= '' and redis.call('HGET', key_session(session), 'users')
  if users and select(2, string.gsub(users, '\n', '')) + 1 >= tonumber(user_limit) and not names(users, user) then
    return {'FULL', 'session_users'}
  end
  local whose = kept[2] or tenant
  if whose ~= '' then
    local limit, number, wait_ms = limit_reached(whose, user, now, tonumber(tenant_limit))
    if limit then return {'TENANT_LIMIT', limit, number, wait_ms} end
  end

  -- The session's agent has a version, and the turn names no agent: workers of 0.1.0, which know no versions of agents, are
  -- to refuse the turn. A version that the request has already stands at its end.
  local counts = agent == '' and kept[5] and string.find(kept[5], '"version":', 1, true)
  if counts and not string.find(request, ',"version":"%d+"[^{}]*}$') then
    request = string.sub(request, 1, -2) .. ',"version":"2"}'
  end
  if kept[9] and string.sub(request, -#WITH_FILES) ~= WITH_FILES then request = string.sub(request, 1, -2) .. WITH_FILES end
  -- What all sessions share is written first: where it is damaged, the call is refused whole.
  list_session(session, now, ttl_ms == '' and tonumber(kept[7]) or life)
  if due_in == 0 and length == 0 then redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session) end
  local last = due_in == 0 and (kept[8] or begin_seq(session))
  local home = kept[3] or agent_queue ~= '' and agent_queue or kept[4]
  local first_named = queue ~= '' and not home -- it becomes the session's
  if queue == '' then queue = home or default_queue end
  local stopped = stopped_by(session, busy)
  local place = stopped and stopped.position + 1 or length
  local f = {new = true, session = session, queue = queue, queued_at = now, status = last and place > 0 and 'waiting' or 'queued',
    tenant = whose ~= '' and whose or nil, priority = priority ~= '' and priority or nil, user = user ~= '' and user or nil, first_of = not known_session,
    media = kept[9], front = front}
  if last and place == 0 and not share_of(f.tenant, f.priority) then f.offered_at = f.front and 0 or now end
  local more = last and {'queued_seq', last + 1, f.offered_at and 'offered_at', f.offered_at} or {}
  redis.call('HSET', key_turn(turn), 'session', session, 'digest', digest, 'request', request, 'queue', queue,
    'status', f.status, 'run', 1, 'attempt', 0, 'crashes', 0, 'errors', 0, 'step', 1, 'tail', tail, 'queued_at', now,
    'agent', named, 'metadata', metadata, 'position', place, 'created', now, 'key', key, 'input', input,
    unpack(more))
  local first = {} -- what the session keeps from now on
  local function keep(field, value)
    first[#first + 1], first[#first + 2] = field, value
  end
  if not kept[6] then
    keep('created', now)
    keep('life', life_of(now, turn))
  end
  if ttl_ms ~= '' and ttl_ms ~= kept[7] then keep('ttl', ttl_ms) end
  if agent ~= '' and not kept[5] then
    keep('agent', agent)
    if agent_queue ~= '' then keep('agent_queue', agent_queue) end
  end
  if first_named then keep('queue', queue) end
  if tenant ~= '' and not kept[2] then keep('tenant', tenant) end
  if whose ~= '' then count_for_tenant(whose, user, turn, now) end
  note_user(session, turn, now, whose, user)
  if priority ~= '' then redis.call('HSET', key_turn(turn), 'priority', priority) end
  if front then redis.call('HSET', key_turn(turn), 'front', 1) end
  list_turn(session, turn)
  if due_in > 0 then
    redis.call('ZADD', key_due(), now + due_in, turn)
    redis.call('HSET', key_turn(turn), 'due_at', now + due_in)
    keep('due_until', math.max(tonumber(redis.call('HGET', key_session(session), 'due_until') or 0), now + due_in))
    redis.call('HSET', key_session(session), unpack(first))
    if length == 0 then release_session(session, now) end
    rq_view(turn, 'delayed', now, now + due_in, f)
    return {'ACCEPTED', length}
  end
  local position = enter_inbox(session, turn, 1, now, input_json(request, input), last, f, stopped, unpack(first))
  if position > 0 then act_on(session, stopped, turn, busy, now) end
  return {'ACCEPTED', position}
end
