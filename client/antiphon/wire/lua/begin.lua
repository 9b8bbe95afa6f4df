-- Note the revision on which a turn runs from now on, and the one that its session keeps. Only turns of sessions that keep
-- a revision, and those that move to another one, need it: `claim` notes the App of all others.
-- The fence names the call. `pins` are the revisions that the session keeps, by agent as JSON, or nothing, and `ran`
-- those on which its agents last ran, where promotions decide on them; '{}' removes them.
-- @args session turn fence revision pins ran bodies...    event bodies
-- -> OK, stop word or ''    (also for a repetition)
-- -> SUPERSEDED
-- @include publish holder
local held, stop = holds(session, fence)
if not held then return {'SUPERSEDED'} end
if redis.call('HGET', key_turn(turn), 'begun') == fence then return {'OK', stop} end
redis.call('HSET', key_turn(turn), 'begun', fence, 'revision', revision)
if pins ~= '' then redis.call('HSET', key_session(session), 'pins', pins) end
if ran == '{}' then redis.call('HDEL', key_session(session), 'ran') elseif ran ~= '' then redis.call('HSET', key_session(session), 'ran', ran) end
if #bodies > 0 then publish(session, now_ms(), bodies) end
return {'OK', stop}
