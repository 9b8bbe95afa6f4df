-- Log and publish events as one act. A body is a JSON object without seq and at, which are put in front of it.
-- XADD comes first (refused cleanly at full memory), then the hash, then the channel.
local function json_text(text)
  if not string.find(text, '[%c\\"]') then return '"' .. text .. '"' end
  return '"' .. string.gsub(text, '[%c\\"]', function(c)
    return (c == '"' or c == '\\') and '\\' .. c or string.format('\\u%04x', string.byte(c))
  end) .. '"'
end

-- If an archive is in use, a session that begins anew continues above the seq of every archived session. A cursor of its
-- former life is then a gap, and never fits by chance.
local read_floor = {} -- @state
local function begin_seq(session)
  if read_floor[1] == nil then read_floor[1] = redis.call('GET', key_seq_floor()) end
  local floor = read_floor[1]
  if floor and not tonumber(floor) then error({err = 'The value of seq_floor is not an integer.'}, 0) end
  if floor then redis.call('HSET', key_session(session), 'first', floor, 'archived', '') end
  return floor or 0
end

-- `last` is the session's seq if the caller has read it, and the rest further fields of the session with their values.
-- Numbers are passed to Redis as existing text, because this function is most of the cost of a delta.
local function publish(session, now, bodies, last, ...) -- @often
  local record, stream, channel = key_session(session), key_events(session), key_live(session)
  local number = last or redis.call('HGET', record, 'seq') or begin_seq(session)
  local events, at, seq = {}, string.format('%d', now), tonumber(number)
  for i = 1, #bodies do
    seq = seq + 1
    number = string.format('%d', seq)
    events[i] = '{"seq":' .. number .. ',"at":' .. at .. ',' .. string.sub(bodies[i], 2)
    redis.call('XADD', stream, number .. '-0', 'e', events[i])
  end
  redis.call('HSET', record, 'seq', number, 'updated', at, ...)
  for i = 1, #events do
    redis.pcall('PUBLISH', channel, events[i]) -- it only hurries: where the user may not, the log is what counts
  end
  return seq
end

-- The body of an event that a script makes itself; `more` is JSON text of further fields or ''.
local function event_body(kind, session, turn, run, more) -- @often
  return '{"type":"' .. kind .. '","session_id":' .. json_text(session) .. ',"turn_id":"' .. turn
    .. '","run":' .. run .. more .. '}'
end
