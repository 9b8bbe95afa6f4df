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

-- Where the stored bytes of a tenant are limited, `stored:<tenant>` has those of each session, and their sum without a name.
-- They count from the next change of a session's files on. Sessions that have ended go where that makes room.
local KEEP_STORED_MS, LOOKED_AT = 40 * 86400000, 1000

local function note_stored(session, bytes)
  local tenant = redis.call('HGET', key_session(session), 'tenant')
  if not tenant or not limit_of(tenant, 'stored_bytes') then return end
  local before = tonumber(redis.call('HGET', key_stored(tenant), session) or 0)
  redis.call('HINCRBY', key_stored(tenant), '', string.format('%.0f', bytes - before))
  redis.call('HSET', key_stored(tenant), session, string.format('%.0f', bytes))
  redis.call('PEXPIRE', key_stored(tenant), KEEP_STORED_MS)
end

-- The limit that a tenant's files would exceed with so many more bytes; nil if there is room.
local function stored_limit(tenant, size)
  local most = (tenant or '') ~= '' and limit_of(tenant, 'stored_bytes')
  local function is_over_it()
    return most and tonumber(redis.call('HGET', key_stored(tenant), '') or 0) + size > most
  end
  if not is_over_it() then return nil end
  for _, session in ipairs(redis.call('HRANDFIELD', key_stored(tenant), LOOKED_AT)) do
    if session ~= '' and redis.call('EXISTS', key_media(session)) == 0 then
      local gone = tonumber(redis.call('HGET', key_stored(tenant), session))
      redis.call('HINCRBY', key_stored(tenant), '', string.format('%.0f', 0 - gone))
      redis.call('HDEL', key_stored(tenant), session)
    end
  end
  return is_over_it() and most or nil
end

local function count_files(session, files, bytes)
  files, bytes = math.max(0, files), math.max(0, bytes)
  redis.call('HSET', key_session(session), 'media', string.format('%.0f %.0f', files, bytes))
  note_stored(session, bytes)
end

-- The limit that a file which is about to be stored would exceed; nil if there is room.
local function no_room(session, begun, size, session_limit, files_limit, bytes_limit)
  local files, bytes = files_of(session)
  if not begun and redis.call('ZCARD', key_sessions()) >= tonumber(session_limit) then return 'sessions' end
  if files >= tonumber(files_limit) then return 'session_files' end
  if bytes + size > tonumber(bytes_limit) then return 'session_file_bytes' end
end

-- Count a file from now on. Its session begins with it if it does not exist. The caller has noted it in the files.
local function begin_file(session, size, op, tenant, ttl_ms, known, now)
  if not known[1] then
    redis.call('HSET', key_session(session), 'created', now, 'life', life_of(now, op))
    if tenant ~= '' then redis.call('HSET', key_session(session), 'tenant', tenant) end
  end
  if ttl_ms ~= '' then redis.call('HSET', key_session(session), 'ttl', ttl_ms) end
  local files, bytes = files_of(session)
  count_files(session, files + 1, bytes + size)
  if not known[4] then mark_turns(session) end
  publish(session, now, {}, known[5])
end

-- Where the contents of a session's files are that are in a byte store, and of those that are on their way to it. The value of
-- such a file begins with its size, '@' and the place.
local function places_of(session)
  local names, places = redis.pcall('HKEYS', key_media(session)), {}
  for _, name in ipairs(names.err and {} or names) do
    if not string.find(name, ':', 1, true) then
      places[#places + 1] = string.match(redis.call('HGET', key_media(session), name), '^%d+@(%S+)')
    end
  end
  return places
end
