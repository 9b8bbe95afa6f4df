-- Read a session at one moment: a page of its history, the running turn, and the cursor before its first event.
-- `turns` names the turns to read: pending (those that have not ended), failed (those that ended without messages, if
-- their place is on the page), both, or ''.
-- @args session start stop turns
-- -> OK, cursor, running turn or '', history length, page of history, fields of the session, inbox, turns, all turns' ids
-- -> SESSION_NOT_FOUND     also of one whose life is over and whose hash still keeps its seq
-- @include life
local fields = redis.call('HGETALL', key_session(session))
if #fields == 0 then return {'SESSION_NOT_FOUND'} end
local head = redis.call('LINDEX', key_inbox(session), 0) or ''
if head == '' and is_over(session) then return {'SESSION_NOT_FOUND'} end
local first = head ~= '' and tonumber(redis.pcall('HGET', key_turn(head), 'first_seq')) -- of a turn that is damaged, nothing is shown
local cursor = redis.call('HGET', key_session(session), 'seq') or '0'
if first then cursor = string.format('%.0f', first - 1) else head = '' end
local length, inbox = redis.call('LLEN', key_history(session)), redis.call('LRANGE', key_inbox(session), 0, -1)

local from, to = tonumber(start), tonumber(stop)
if from < 0 then from = math.max(0, length + from) end
to = math.min(to < 0 and length + to or to, length - 1)
-- A turn that failed after the last message belongs to the page that ends with that message.
local function on_page(place) return place and place >= from and (place <= to or place == length and to == length - 1) end

local listed, found = {}, {}
local function show(turn)
  local f = redis.pcall('HGETALL', key_turn(turn))
  found[#found + 1] = {turn, f.err and {} or f}
end
if string.find(turns, 'failed') then
  listed = redis.call('LRANGE', key_turns(session), 0, -1)
  for _, turn in ipairs(listed) do
    if on_page(tonumber(redis.pcall('HGET', key_turn(turn), 'place'))) then show(turn) end
  end
end
if string.find(turns, 'pending') then
  for _, turn in ipairs(inbox) do show(turn) end
  local delays = redis.call('HEXISTS', key_session(session), 'due_until') == 1 and redis.call('ZCARD', key_due()) > 0
  local outside = delays or (redis.call('HGET', key_session(session), 'aside') or '0') ~= '0'
  for _, turn in ipairs(outside and redis.call('LRANGE', key_turns(session), 0, -1) or {}) do
    if redis.call('ZSCORE', key_due(), turn) or redis.call('ZSCORE', key_aside(), turn) then show(turn) end
  end
end
return {'OK', cursor, head, length, redis.call('LRANGE', key_history(session), start, stop), fields, inbox, found, listed}
