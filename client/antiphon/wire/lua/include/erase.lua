-- What stays of a deleted session: its turns' records without a word of their content, so that a call that was repeated
-- starts none of them again. Older releases see a cancelled turn.
local DELETED = 'The session was deleted.'

-- A turn of a deleted session that waits outside an inbox, and that the session no longer listed, does not begin.
local function end_outside(turn, tenant)
  local delayed, aside = redis.call('ZREM', key_due(), turn), redis.call('ZREM', key_aside(), turn)
  if delayed + aside == 0 then return end
  redis.call('ZREM', key_suspended(), turn)
  if tenant then redis.pcall('ZREM', key_tenant(tenant), turn) end
  redis.call('HSET', key_turn(turn), 'status', 'cancelled')
end

-- A field that counts, '0' where it is damaged.
local function counted(field)
  return field and #field <= 15 and string.find(field, '^%d+$') and field or '0'
end

-- Erase what a turn of this session says that has ended, here and where RQ's tools show it. Returns whether it did.
local function erase_turn(session, turn, now)
  local f = redis.pcall('HMGET', key_turn(turn), 'session', 'status', 'queue', 'execution', 'tenant', 'run', 'attempt',
    'queued_seq', 'last_seq', 'deleted')
  if f.err then return redis.call('DEL', key_turn(turn)) > 0 end
  if f[1] ~= session or f[2] ~= 'finished' and f[2] ~= 'failed' and f[2] ~= 'cancelled' or f[10] then return false end
  local left = redis.call('PTTL', key_turn(turn))
  rq_forget(turn, f[3] or '', f[4])
  redis.call('DEL', key_turn(turn), key_journal(turn), key_requests(turn), key_variants(turn), key_spent('turn:' .. turn), key_rq_job(turn),
    key_rq_results(turn))
  redis.call('HSET', key_turn(turn), 'session', session, 'status', 'cancelled', 'error', DELETED, 'digest', 'deleted',
    'deleted', now, 'queue', f[3] or '', 'run', counted(f[6]), 'attempt', counted(f[7]), 'crashes', 0, 'errors', 0, 'step', 1,
    'queued_seq', counted(f[8]), 'last_seq', counted(f[9]))
  if f[5] then redis.call('HSET', key_turn(turn), 'tenant', f[5]) end
  redis.call('PEXPIRE', key_turn(turn), left > 0 and left or KEEP_TURN_SECONDS * 1000)
  return true
end
