-- Have notifications about a turn sent from now on. What has happened to it before is sent once: that it has ended, or
-- waits for decisions. One that is set again keeps its place.
-- @args turn push content most keep_ms
-- -> OK
-- -> FULL                  the turn has so many
-- -> TURN_NOT_FOUND        also for a deleted one
-- @include following notice_pages damage pushes
local f = redis.call('HMGET', key_turn(turn), 'session', 'deleted', 'pushes', 'push:' .. push, 'status', 'ended_at', 'suspended_at', 'calls')
if not f[1] or f[2] then return {'TURN_NOT_FOUND'} end
local others, status, now = f[3] or '', f[5], now_ms()
local _, number = string.gsub(others, '%S+', '')
if not f[4] and number >= tonumber(most) then return {'FULL'} end
local newest = follow_notices(keep_ms)
redis.call('SET', key_push_cursor(), newest, 'NX')
redis.call('PEXPIRE', key_push_cursor(), string.format('%.0f', PUSH_CURSOR_MS))
local since = f[4] and string.match(f[4], '^%S+') or newest
redis.call('HSET', key_turn(turn), 'push:' .. push, since .. ' ' .. content)
if f[4] then return {'OK'} end
redis.call('HSET', key_turn(turn), 'pushes', others .. push .. ' ')
if status == 'suspended' then
  if (f[8] or '[]') ~= '[]' then add_push(push, now, f[7], 'turn_suspended', turn) end
elseif status == 'finished' or status == 'failed' or status == 'cancelled' then
  add_push(push, now, f[6], 'turn_' .. status, turn)
end
return {'OK'}
