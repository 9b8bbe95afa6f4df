-- Suspend a turn until its open calls are decided and its sleeps and waits are over. Its journal is written; no worker holds it from
-- now on. A sleep is a call of the kind `sleep` whose limit approves it, and a call of the kind `event` waits for one; one that was sent before reaches it at once. Only calls that somebody decides about are listed.
-- With `aside`, what the turn has used as JSON, the session's next turns pass it by. The fence names the call. The first
-- write is a ZREM, so that it works at full memory.
-- @args session turn fence aside count rest...    of `count` calls: id, kind, at_limit, ms it may wait ('': longest), JSON, the decision of its limit as JSON or '', the event that it waits for ("<position> <name>") or ''; then event bodies
-- -> OK                    (also for a repetition)
-- -> STOP, reason          it is to be cancelled, and nothing was written
-- -> SUPERSEDED
-- @include publish rq_view shares inbox let_in holder notices cancelled suspended resumed events
if redis.call('HGET', key_turn(turn), 'given_back') == fence then return {'OK'} end
local held, stop = holds(session, fence)
if not held then return {'SUPERSEDED'} end
if stop == '' and cancelled_in_rq(turn) then stop = IN_RQ end
if stop ~= '' then return {'STOP', stop} end
local now, calls, waits, bodies, soonest, awaits = now_ms(), {}, {}, {}, LONGEST_WAIT_MS, false
redis.call('ZREM', key_active(), session)
redis.call('HSET', key_turn(turn), 'given_back', fence)
forget_calls(turn)
for n = 1, tonumber(count) do
  local id, kind, at_limit, ms, json, limit, event = unpack(rest, 7 * n - 6, 7 * n)
  ms = math.min(tonumber(ms) or LONGEST_WAIT_MS, LONGEST_WAIT_MS)
  local till = string.format('%.0f', now + ms)
  redis.call('HSET', key_turn(turn), 'wait:' .. n, till .. ' ' .. at_limit .. ' ' .. kind .. ' ' .. id)
  if limit ~= '' then redis.call('HSET', key_turn(turn), 'limit:' .. n, limit) end
  if event ~= '' then
    awaits = true
    await_event(turn, n, event, now)
  end
  local list = decidable(kind) and calls or waits
  list[#list + 1], soonest = string.sub(json, 1, -2) .. ',"until":' .. till .. '}', math.min(soonest, ms)
end
local asks, sleeps = #calls > 0, #waits > 0
calls, waits = '[' .. table.concat(calls, ',') .. ']', '[' .. table.concat(waits, ',') .. ']'
for i = 7 * count + 1, #rest do bodies[#bodies + 1] = rest[i] end
local f, view = redis.call('HMGET', key_turn(turn), 'run', 'attempt', 'step'), viewed(turn)
bodies[#bodies + 1] = event_body(asks and 'turn_suspended' or 'turn_sleeping', session, turn, f[1],
  ',"attempt":' .. f[2] .. ',"step":' .. (tonumber(f[3]) or 1) - 1
  .. (asks and ',"calls":' .. calls or '') .. (sleeps and ',"waits":' .. waits or ''))
local seq = publish(session, now, bodies)
redis.call('HSET', key_turn(turn), 'status', 'suspended', 'suspended_at', now, 'calls', calls)
if sleeps then redis.call('HSET', key_turn(turn), 'waits', waits) end
if asks then redis.call('ZADD', key_suspended(), now, turn) end
let_go(session)
rq_view(turn, 'suspended', now, nil, view)
if asks then notice('turn_suspended', session, turn, seq, view.tenant) end
land(turn, view, now)
local again = math.min(soonest, asks and LOOK_AGAIN_MS or awaits and LOOK_AGAIN_MS or LONGEST_UNSEEN_MS)
if aside == '' then
  redis.call('ZADD', key_active(), now + again, session)
else
  redis.call('ZADD', key_aside(), now + again, turn)
  redis.call('HINCRBY', key_session(session), 'aside', 1)
  redis.call('HDEL', key_turn(turn), 'first_seq', 'session_usage') -- others will add to the session's usage
  redis.call('HSET', key_turn(turn), 'own_usage', aside)
  redis.call('LREM', key_inbox(session), 1, turn)
  ready(session, now)
end
if awaits and receive_all(session, turn, now) then resume_if_decided(session, turn, now) end
return {'OK'}
