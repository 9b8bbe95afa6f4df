-- Erase what turns said that have ended, of a session or of all ('') of a tenant, some keys at a time: also of those that no
-- session lists. With `any` = '1' they may be of any tenant or of none.
-- @args session tenant any cursor count
-- -> ERASED, the next cursor ('0': that was all), how many
-- @include rq_view erase
local erased, stem = 0, key_turn('')
local page = redis.call('SCAN', cursor, 'MATCH', string.gsub(stem, '[%*%?%[%]%^\\-]', '\\%0') .. '*', 'COUNT', count)
for _, key in ipairs(page[2]) do
  local f = redis.pcall('HMGET', key, 'session', 'tenant')
  if f[1] and (session == '' or f[1] == session) and (any == '1' or (f[2] or '') == tenant) then
    if erase_turn(f[1], string.sub(key, #stem + 1), now_ms()) then erased = erased + 1 end
  end
end
return {'ERASED', page[1], erased}
