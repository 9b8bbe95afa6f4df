-- Delete the record of a turn that has ended, its variants, and what RQ's tools show of it. What it left in the history stays.
-- @args turn
-- -> DELETED
-- -> OPEN, status          it has not ended
-- -> MISSING
-- @include rq_view
local status, session, queue, execution =
  unpack(redis.call('HMGET', key_turn(turn), 'status', 'session', 'queue', 'execution'))
if not status then return {'MISSING'} end
if status ~= 'finished' and status ~= 'failed' and status ~= 'cancelled' then return {'OPEN', status} end
rq_forget(turn, queue or '', execution)
redis.call('LREM', key_turns(session), -1, turn)
redis.call('DEL', key_turn(turn), key_requests(turn), key_variants(turn), key_rq_job(turn), key_rq_results(turn))
return {'DELETED'}
