-- Delete a session, and its archived copy a minute later. Its delayed turns are cancelled, so that none of them begins it
-- anew, and so are the suspended ones that others pass by; its schedules go. What its turns said is erased. Others
-- may be kept that it does not list: `erasing` names the session until a search of all keys has erased them (see `erase`). The
-- caller searches at once where there are some: of a full list, and from the time before it expired or was archived. Its hash
-- keeps the seq for another hour, as that of a session that has expired. Open readers are told to look.
-- The first write is a ZREM, so that it works at full memory.
-- @args session tenant
-- -> DELETED, '1' if there was a session, '1' if the caller is to search all keys, the places of its files in a byte store...
-- -> OTHER_TENANT          it belongs to another one, or to none
-- -> BUSY, turn            the last one of its inbox
-- @include publish rq_view life shares inbox let_in holder notices conclude resumed withdraw archive scheduled memories erase files
local KEPT_EVENTS = 10000
local SOON_MS, LATER_MS = 60000, 600000 -- when a worker searches: after a caller that has died, or for earlier sessions
local turn = redis.call('LINDEX', key_inbox(session), -1)
local kept = redis.pcall('HMGET', key_session(session), 'seq', 'created', 'tenant', 'earlier', 'life')
if tenant ~= '' and kept[2] and kept[3] ~= tenant then return {'OTHER_TENANT'} end
if turn then return {'BUSY', turn} end
local more = redis.call('LLEN', key_turns(session)) >= KEPT_TURNS or kept[4]
if kept[2] then
  more = more or is_over(session) or string.match(kept[5] or '', '^%d+') ~= kept[2] -- it was restored
else
  more = more or not kept[1] and redis.call('EXISTS', key_seq_floor()) == 1 -- it may be archived
end
redis.call('ZREM', key_sessions(), session)
local whose = kept[2] and (kept[3] or '') or tenant ~= '' and tenant
local search_at = tonumber(redis.call('HGET', key_erasing(), '') or '')
more = more or not kept[2] and search_at and search_at < now_ms() + LATER_MS / 2 -- one is under way, or has died
local mark = whose and session .. '\31' .. whose or session
local before = tonumber(redis.call('HGET', key_erasing(), mark) or '') or 0 -- later than now where the clock was put back
redis.call('HSET', key_erasing(), mark, string.format('%.0f', math.max(before, now_ms())))
if more then redis.call('HSET', key_erasing(), '', now_ms() + SOON_MS) end
redis.call('HSETNX', key_erasing(), '', now_ms() + LATER_MS)
redis.call('EXPIRE', key_erasing(), KEEP_TURN_SECONDS)
local turns = redis.call('LRANGE', key_turns(session), 0, -1)
for _, outside in ipairs(turns) do
  if redis.call('ZREM', key_due(), outside) == 1 or redis.call('ZSCORE', key_aside(), outside) then
    if redis.call('TYPE', key_turn(outside)).ok == 'hash' then
      redis.call('DEL', key_journal(outside))
      withdraw(session, outside, DELETED, now_ms(), KEPT_EVENTS)
    else
      redis.call('ZREM', key_aside(), outside)
      redis.call('ZREM', key_suspended(), outside)
    end
    redis.call('ZREM', key_sessions(), session)
  end
end
for _, ended in ipairs(turns) do erase_turn(session, ended, now_ms()) end
if redis.call('EXISTS', key_seq_floor()) == 1 then
  redis.call('ZREM', key_ending(), session)
  raise_floor(session)
  forget_copies(session, now_ms())
end
forget_schedules(session)
unlearn(session, now_ms())
redis.call('DEL', key_turns(session), key_spent('session::' .. session), key_spent('session:day:' .. session),
  key_spent('session:month:' .. session))
redis.call('HDEL', key_quarantined(), session)
local seq = redis.pcall('HGET', key_session(session), 'seq')
local places = places_of(session)
local existed = redis.call('DEL', key_history(session), key_events(session), key_media(session)) > 0 or kept.err or kept[2]
if existed then
  redis.call('DEL', key_session(session))
  leave_gap(session, type(seq) == 'string' and seq)
  redis.call('PEXPIRE', key_session(session), HASH_LIVES_ON_MS)
  redis.pcall('PUBLISH', key_live(session), '') -- it only hurries
end
return {'DELETED', existed and '1' or '', more and '1' or '', unpack(places)}
