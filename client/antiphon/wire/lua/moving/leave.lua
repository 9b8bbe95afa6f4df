-- The cell is at `place` from now on. Here, no call of any release is accepted afterwards: the keys that all sessions share get
-- another type, and the sessions with turns lose their fences. Nothing happens if this server is another one than the mover has
-- frozen, or if anything was written since: `run_id` and `changes` are what it reported then. `proof` follows the place in the marker.
-- @args place proof run_id changes shared...
-- -> LEFT                  (also for a repetition)
-- -> WRITTEN               copy what was written, and try again
-- -> MOVED, place          to another place, before
local before = redis.call('GET', key_moved())
if before and string.match(before, '^to (%S+)') == place then return {'LEFT'} end
if before then return {'MOVED', before} end
local server, writes = redis.call('INFO', 'server'), redis.call('INFO', 'persistence')
if string.match(server, 'run_id:(%x+)') ~= run_id
  or string.match(writes, 'rdb_changes_since_last_save:(%d+)') ~= changes then return {'WRITTEN'} end
for _, session in ipairs(redis.call('ZRANGE', key_active(), 0, -1)) do redis.call('UNLINK', key_session(session)) end
for _, key in ipairs(shared) do redis.call('SET', key, 'moved') end
redis.call('SET', key_moved(), 'to ' .. place .. (proof ~= '' and ' ' .. proof or ''))
return {'LEFT'}
