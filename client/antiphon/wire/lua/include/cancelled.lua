-- What RQ's `job.cancel()` says of a turn; no script of ours says it of one that goes on.
local IN_RQ = 'cancelled in RQ'

local function cancelled_in_rq(turn)
  return redis.call('HGET', key_rq_job(turn), 'status') == 'canceled'
end
