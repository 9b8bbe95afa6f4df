-- Stop a turn that may be running: its holder is told, by a message and with its next answer. The message only makes it
-- faster: a Redis user without the right to send it can still cancel. A turn that no worker runs is withdrawn.
-- Returns whether it has ended.
local function stop_turn(session, turn, status, reason, keep, now, keep_events)
  if status ~= 'running' then return withdraw(session, turn, reason, now, keep_events, keep) end
  redis.call('HSET', key_turn(turn), 'cancel', reason, 'keep', keep)
  redis.call('HSET', key_session(session), 'stop', reason)
  redis.pcall('PUBLISH', key_control(redis.call('HGET', key_session(session), 'holder') or ''),
    '{"command":"cancel","session_id":' .. json_text(session) .. ',"turn_id":"' .. turn .. '","reason":'
          .. json_text(reason) .. ',"keep":' .. json_text(keep) .. '}')
end
