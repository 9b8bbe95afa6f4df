-- A turn was submitted for the time at which a schedule was due, or was refused: the schedule waits for its next time. Of
-- several workers that do so, the first one does it. A schedule that was paused, changed or removed meanwhile stays so.
-- @args id due next turn error
-- -> OK
-- -> MOVED                 it is not due at this time any more
-- @include
if redis.call('ZSCORE', key_schedules(), id) ~= due then return {'MOVED'} end
redis.call('HSET', key_schedule(id), 'turn', turn, 'error', error)
redis.call('ZADD', key_schedules(), next, id)
return {'OK'}
