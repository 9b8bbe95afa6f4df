-- The cell that the mover with this marker has copied is here from now on. `shared` are the names of the keys that all sessions
-- share: each as a key, and as it was copied.
-- @args marker shared...
-- -> ARRIVED               (also for a repetition)
-- -> SUPERSEDED            another mover copies
local found = redis.call('GET', key_moved())
if not found then return {'ARRIVED'} end
if found ~= marker then return {'SUPERSEDED'} end
for i = 1, #shared, 2 do
  redis.call('UNLINK', shared[i])
  if redis.call('EXISTS', shared[i + 1]) == 1 then redis.call('RENAME', shared[i + 1], shared[i]) end
end
redis.call('DEL', key_moved())
return {'ARRIVED'}
