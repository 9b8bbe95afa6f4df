-- A budget has changed: turns that its scope keeps from going on are queued. One that is not given back yet is queued then.
-- `scope` is the kind of the scope and a hash of its name, or the kind alone for all names. It looks at `count` turns that
-- were noted at `since` or later; repeat it from the time that it returns. The first write is a ZREM, so that it works
-- at full memory.
-- @args scope since count
-- -> WOKEN, since          '' when it has looked at all of them
-- @include publish rq_view shares inbox damage
local now = now_ms()

local function wake(turn)
  local session, status, code, kept_by = unpack(redis.call('HMGET', key_turn(turn), 'session', 'status', 'retry_code', 'unfunded'))
  if kept_by and kept_by ~= scope and string.match(kept_by, '^%S+') ~= scope then return end
  redis.call('ZREM', key_unfunded(), turn)
  if status == 'retrying' and code == 'budget_reached' and redis.call('LINDEX', key_inbox(session), 0) == turn then
    ready(session, now, true)
  end
end

local found = redis.call('ZRANGEBYSCORE', key_unfunded(), since, '+inf', 'WITHSCORES', 'LIMIT', 0, count)
for n = 1, #found, 2 do guarded(wake, found[n]) end
local last = found[#found]
return {'WOKEN', #found < 2 * count and '' or last == since and '(' .. last or last} -- further ones of one time ask again by themselves
