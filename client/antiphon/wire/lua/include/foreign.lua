-- A job that a worker has taken and that is no turn: it stands among RQ's started jobs until it is one or has failed.
-- Returns its id, queue and data; nil where RQ has no such job.
local function foreign_job(job, queue, worker, now)
  if redis.call('EXISTS', key_rq_job(job)) == 0 then return nil end
  redis.call('ZADD', key_rq_started(queue), math.floor(now / 1000) + 60, job .. ':' .. worker)
  local data = redis.pcall('HGET', key_rq_job(job), 'data')
  return {job, queue, type(data) == 'string' and data or ''}
end
