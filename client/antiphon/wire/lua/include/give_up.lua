-- Turns that a script ends although they have steps: no worker can.

-- The journal stays as a field, with what was decided about its open calls. The tools have run, or may have, and the history does not show it.
local function keep_journal(session, turn)
  local journal = redis.call('LRANGE', key_journal(turn), 0, -1)
  if #journal == 0 then return end
  local _, _, told = decided(turn)
  for _, decision in ipairs(told) do journal[#journal + 1] = '{"decision":' .. decision .. '}' end
  redis.call('HSET', key_turn(turn), 'journal', '[' .. table.concat(journal, ',') .. ']')
  untold(session, turn)
end

-- What a session has used with one more turn: the sum of both, of JSON as `Usage` writes it.
local function summed(total, own)
  local sum, more = cjson.decode(total), cjson.decode(own)
  local function unpriced(used)
    return used.cost and (used.unpriced_tokens or 0) or (used.input_tokens or 0) + (used.output_tokens or 0)
  end
  local left_out = (sum.cost or more.cost) and unpriced(sum) + unpriced(more) or nil
  for name, value in pairs(more) do sum[name] = (sum[name] or 0) + value end
  sum.unpriced_tokens = left_out
  return cjson.encode(sum)
end

-- Of a turn that others have passed by, only its own usage is known until a worker goes on with it.
local function count_usage(session, turn)
  local usage, own = unpack(redis.call('HMGET', key_turn(turn), 'session_usage', 'own_usage'))
  if not usage and own then
    local whole, sum = pcall(summed, redis.call('HGET', key_session(session), 'usage') or '{}', own)
    usage = whole and sum -- a damaged total holds no turn up
  end
  if usage then redis.call('HSET', key_session(session), 'usage', usage) end
end

-- The turn fails, and the session's next one starts.
local function give_up(session, turn, now, code, message)
  local head = redis.call('LINDEX', key_inbox(session), 0) == turn
  redis.call('HSET', key_turn(turn), 'error', message, 'error_code', code)
  count_usage(session, turn)
  keep_journal(session, turn)
  conclude(session, turn, 'failed', now, publish(session, now, {event_body('turn_failed', session, turn,
    redis.call('HGET', key_turn(turn), 'run'), ',"code":' .. json_text(code) .. ',"message":' .. json_text(message))}),
    tonumber(keep_events))
  if head then ready(session, now) end
end
