-- The prefix of another deployment on this queue, if the job is a turn of that one.
local function other_prefix(job)
  local prefix = redis.pcall('HGET', key_rq_job(job), 'ant_prefix')
  return type(prefix) == 'string' and prefix ~= DEPLOYMENT and prefix
end

-- A job that a worker has taken and that is not yet a turn. It is listed among RQ's started jobs until it is a turn or has
-- failed. Returns its id, queue and data; nil if RQ has no such job.
local function foreign_job(job, queue, worker, now)
  if redis.call('EXISTS', key_rq_job(job)) == 0 then return nil end
  redis.call('ZADD', key_rq_started(queue), math.floor(now / 1000) + 60, job .. ':' .. worker)
  local data = redis.pcall('HGET', key_rq_job(job), 'data')
  return {job, queue, type(data) == 'string' and data or ''}
end
