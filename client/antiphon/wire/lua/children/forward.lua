-- Publish events of a child turn in the stream of the turn that waits for it. The record of that turn has in
-- `child:<child>` up to which seq of the child's session they were published, or 'over'. Any process that has read the
-- events may bring them: what does not follow `after` directly is refused, so each is published once and in order.
-- With `over` they end the child's run. Of turns below that were suspended, have continued or ended, `asks:<turn>` gets
-- the pending calls: "<run of the turn that waits>/<child>/<turn above>/<'over' at its end> <JSON>".
-- @args turn run child after upto over count rest...    of `count` turns: id, the value of `asks`; then event bodies
-- -> FORWARDED
-- -> BEHIND, place         they were published up to there
-- -> OVER                  the run of the turn has ended or not begun, or the child's has ended; nothing was written
-- @include publish
local f = redis.call('HMGET', key_turn(turn), 'session', 'status', 'run', 'child:' .. child, 'started_at')
local session, status, place = f[1], f[2], f[4] or '0'
if not session or f[3] ~= run or not f[5] or status == 'finished' or status == 'failed' or status == 'cancelled' then return {'OVER'} end
if place == 'over' then return {'OVER'} end
if place ~= after then return {'BEHIND', place} end
local bodies, calls = {}, 2 * tonumber(count)
for i = calls + 1, #rest do bodies[#bodies + 1] = rest[i] end
if #bodies > 0 then publish(session, now_ms(), bodies) end
redis.call('HSET', key_turn(turn), 'child:' .. child, over ~= '' and 'over' or upto)
for i = 1, calls, 2 do redis.call('HSET', key_turn(turn), 'asks:' .. rest[i], rest[i + 1]) end
return {'FORWARDED'}
