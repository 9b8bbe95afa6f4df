-- Read the entries of the files that a session has.
-- @args session
-- -> FILES, entries
-- @include
local entries = {}
for _, name in ipairs(redis.call('HKEYS', key_media(session))) do
  if not string.find(name, '[:~]') then
    entries[#entries + 1] = string.gsub(redis.call('HGET', key_media(session), name), '^%S+ ', '')
  end
end
return {'FILES', entries}
