-- Write keys that were read elsewhere, while this cell is being copied by the mover with this marker. A key without content is
-- removed. `copies` are keys with the times in ms at which they expire (0: never) and their dumps.
-- @args marker copies...
-- -> RESTORED              (also for a repetition)
-- -> SUPERSEDED            another mover copies, or the cell has arrived
if redis.call('GET', key_moved()) ~= marker then return {'SUPERSEDED'} end
for i = 1, #copies, 3 do
  local key, expires_at, dump = copies[i], copies[i + 1], copies[i + 2]
  if dump == '' then
    redis.call('UNLINK', key)
  else
    redis.call('RESTORE', key, expires_at, dump, 'REPLACE', 'ABSTTL')
  end
end
return {'RESTORED'}
