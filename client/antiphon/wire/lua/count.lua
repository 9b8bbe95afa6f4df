-- Keep the figures of a revision's turns that a worker process has counted since its start, in place of its earlier ones.
-- Of more than MOST processes, those that wrote longest ago are added up in the field `past`. A process that has written
-- before sets `known`, and starts again from zero where its figures were added up. Without a `worker`, `found` are those of
-- a single turn, and are added up at once.
-- @args figures worker found known lasts_ms
-- -> COUNTED
-- -> ADDED_UP
-- @include
local MOST = 100
local now = now_ms()
if known ~= '' and redis.call('HEXISTS', key_figures(figures), worker) == 0 then return {'ADDED_UP'} end
local past = nil

local function read(text)
  local ok, one = pcall(cjson.decode, text or '{}')
  return ok and type(one) == 'table' and one or {}
end

local function add_up(text)
  past = past or read(redis.call('HGET', key_figures(figures), 'past'))
  for name, value in pairs(read(text)) do
    if name ~= 'at' and type(value) == 'number' then past[name] = (tonumber(past[name]) or 0) + value end
  end
end

if worker == '' then
  add_up(found)
else
  local mine = read(found)
  mine.at = now
  redis.call('HSET', key_figures(figures), worker, cjson.encode(mine))
end
if redis.call('HLEN', key_figures(figures)) > MOST then
  local others, fields = {}, redis.call('HGETALL', key_figures(figures))
  for i = 1, #fields, 2 do
    local name = fields[i]
    if name ~= 'past' and name ~= 'rated' and name ~= 'scores' and name ~= worker then
      others[#others + 1] = {name, fields[i + 1], tonumber(read(fields[i + 1]).at) or 0}
    end
  end
  table.sort(others, function(a, b) return a[3] < b[3] or a[3] == b[3] and a[1] < b[1] end)
  for i = 1, #others - MOST / 2 do
    add_up(others[i][2])
    redis.call('HDEL', key_figures(figures), others[i][1])
  end
end
if past then redis.call('HSET', key_figures(figures), 'past', cjson.encode(past)) end
redis.call('PEXPIRE', key_figures(figures), lasts_ms)
return {'COUNTED'}
