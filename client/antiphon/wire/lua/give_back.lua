-- Give back an unfinished turn, perhaps for a delay. A drain counts as no attempt, and so does a limit, for which the
-- model service was not asked; an error is counted.
-- The fence names the call. The first write is a ZREM, so that it works at full memory.
-- `service` is what the model service said with its error, as JSON.
-- `lacking` names the Apps that lack what it needs: it waits for others, whose bells `workers` are. With `missing`, none has that revision.
-- @args session turn fence cause delay_ms reason code service lacking missing workers...
-- -> OK
-- -> STOPPED, stop word    it was cancelled before: its holder is to end it
-- -> SUPERSEDED
-- @include publish rq_view shares inbox let_in holder retry
if redis.call('HGET', key_turn(turn), 'given_back') == fence then return {'OK'} end
local held, stop = holds(session, fence)
if not held then return {'SUPERSEDED'} end
if stop ~= '' then return {'STOPPED', stop} end
local now, delay = now_ms(), tonumber(delay_ms)
redis.call('ZREM', key_active(), session)
local f = missing .. lacking ~= '' and redis.call('HMGET', key_turn(turn), 'missed_at', 'app') or {}
local missed, app = f[1] or '', f[2] or ''
redis.call('HSET', key_turn(turn), 'given_back', fence, 'missed_at', missing ~= '' and (tonumber(missed) and missed or now) or '')
if lacking ~= '' then redis.call('HSET', key_turn(turn), 'lacking', lacking, 'app', string.find(lacking, app, 1, true) and '' or app) end
let_go(session)
retry(session, turn, now, delay, reason, code, service)
for _, worker in ipairs(workers) do ring(worker) end
if missing ~= '' then redis.call('SADD', key_missing(missing), turn) redis.call('PEXPIRE', key_missing(missing), 1000 * KEEP_TURN_SECONDS) end
if cause ~= 'drain' then -- since when its model service fails in this step: progress begins anew
  local s = redis.call('HMGET', key_turn(turn), 'step', 'failing')
  if string.match(s[2] or '', '^%S*') ~= s[1] then
    redis.call('HSET', key_turn(turn), 'failing', s[1] .. string.format(' %.0f', now))
  end
end
redis.call('HINCRBY', key_turn(turn), cause == 'error' and 'errors' or 'attempt', cause == 'error' and 1 or -1)
return {'OK'}
