-- Cut off the end of a history, and drop what refers to it: the start of the window, a summary that covers any removed
-- message, and the places of turns that left no messages. What memories hold of it is looked at again (`memories`).
local function cut(session, keep)
  local fields, history = key_session(session), key_history(session)
  keep = tonumber(keep)
  redis.call('HDEL', fields, 'window')
  unlearn(session, now_ms())
  local summed_up = string.match(redis.call('HGET', fields, 'summary') or '0', '^%d+')
  if tonumber(summed_up) > keep then redis.call('HDEL', fields, 'summary') end
  if keep > 0 then redis.call('LTRIM', history, 0, keep - 1) else redis.call('DEL', history) end
  for _, turn in ipairs(redis.call('LRANGE', key_turns(session), 0, -1)) do
    if tonumber(redis.call('HGET', key_turn(turn), 'place') or 0) > keep then redis.call('HDEL', key_turn(turn), 'place') end
  end
end
