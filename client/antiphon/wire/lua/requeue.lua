-- Run a failed turn again: a new run at the end of its session's inbox. `again` names the call.
-- @args turn again
-- -> OK                    (also for a repetition)
-- -> NOT_FAILED, status
-- -> SESSION_CLOSED, session
-- -> OTHER_TENANT, session   its session has ended, and another tenant has begun one of that name
-- -> TURN_NOT_FOUND
-- -> TURN_DELETED          its session was deleted, and what it said
-- @include publish rq_view life shares inbox suspended erasing requeue run_again users
local f = redis.call('HMGET', key_turn(turn), 'session', 'status', 'again', 'deleted')
if not f[1] then return {'TURN_NOT_FOUND'} end
if f[4] then return {'TURN_DELETED'} end
if f[3] == again then return {'OK'} end
if f[2] ~= 'failed' then return {'NOT_FAILED', f[2]} end
local kept = kept_from_running(f[1], turn)
if kept == 'OTHER_TENANT' then return {'OTHER_TENANT', f[1]} end
if kept then return {'TURN_DELETED'} end
if not run_again(f[1], turn, now_ms(), again) then return {'SESSION_CLOSED', f[1]} end
note_user(f[1], turn, now_ms())
return {'OK'}
