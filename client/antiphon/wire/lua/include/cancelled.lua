-- Whether RQ's `job.cancel()` has marked a turn; no script of ours marks a turn that goes on.
local IN_RQ = 'cancelled in RQ'

local function cancelled_in_rq(turn) return redis.call('HGET', key_rq_job(turn), 'status') == 'canceled' end

-- Tell the holder of a running turn that was cancelled there to stop. Returns the stop word.
local function stop_cancelled(session, turn)
  redis.call('HSET', key_turn(turn), 'cancel', IN_RQ)
  redis.call('HSET', key_session(session), 'stop', IN_RQ)
  return IN_RQ
end
