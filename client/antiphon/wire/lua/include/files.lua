-- A session that has files: workers of 0.2.0 do not know them, and are to leave its turns to others.
local function mark_turns(session)
  for _, turn in ipairs(redis.call('LRANGE', key_turns(session), 0, -1)) do
    local f = redis.pcall('HMGET', key_turn(turn), 'request', 'status')
    if f[1] and f[2] ~= 'finished' and f[2] ~= 'cancelled' and string.sub(f[1], -#WITH_FILES) ~= WITH_FILES then
      redis.call('HSET', key_turn(turn), 'request', string.sub(f[1], 1, -2) .. WITH_FILES)
    end
  end
end

-- How many files a session has, and their bytes.
local function files_of(session)
  local files, bytes = string.match(redis.call('HGET', key_session(session), 'media') or '', '^(%d+) (%d+)$')
  return tonumber(files or 0), tonumber(bytes or 0)
end

local function count_files(session, files, bytes)
  redis.call('HSET', key_session(session), 'media', string.format('%.0f %.0f', math.max(0, files), math.max(0, bytes)))
end
