-- Pages of notices, for those who hand them out and keep a cursor.
local MOST_NOTICES_AT_ONCE = 500

local function parts_of(entry)
  local at, number = string.match(entry or '', '^(%d+)-(%d+)$')
  return tonumber(at) or 0, tonumber(number) or 0
end

-- Whether an entry of the log stands behind another one.
local function behind(entry, other)
  local at, number = parts_of(entry)
  local other_at, other_number = parts_of(other)
  return at > other_at or at == other_at and number > other_number
end

-- The next notices behind the one that a key names, with their `id`; the one behind which some are missing, or ''; and '1' if there are more.
local function notices_behind(key, keep_ms)
  local cursor, newest = redis.call('GET', key), follow_notices(keep_ms)
  if cursor == newest then return {}, '', '' end
  local page = redis.call('XRANGE', key_notices(), cursor or '-', '+', 'COUNT', MOST_NOTICES_AT_ONCE)
  local missed = ''
  if page[1] and page[1][1] == cursor then
    table.remove(page, 1)
  else
    missed = cursor or 'the beginning'
    page = redis.call('XRANGE', key_notices(), '-', '+', 'COUNT', MOST_NOTICES_AT_ONCE)
  end
  local found = {}
  for n, entry in ipairs(page) do
    found[n] = {id = entry[1]}
    for i = 1, #entry[2], 2 do found[n][entry[2][i]] = entry[2][i + 1] end
  end
  return found, missed, found[#found].id ~= newest and '1' or ''
end
