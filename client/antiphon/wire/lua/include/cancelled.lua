-- Whether RQ's `job.cancel()` has marked a turn; no script of ours marks a turn that goes on.
local IN_RQ = 'cancelled in RQ'

local function cancelled_in_rq(turn) return redis.call('HGET', key_rq_job(turn), 'status') == 'canceled' end
