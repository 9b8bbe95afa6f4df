-- Notifications about single turns. A turn has the field `push:<id>` for each ("<since> <content>"), and their ids in
-- `pushes`; they go with it. `pushes` is the sorted set of what is to be sent, by the time of the next try. `push_cursor` is
-- the last notice that was handed out, while turns may have such fields.
local PUSH_CURSOR_MS = 40 * 86400000

local function add_push(push, now, at, kind, turn)
  redis.call('ZADD', key_pushes(), now, table.concat({push, string.format('%.0f', now), at, kind, turn}, ' '))
end

-- Hand new notices to the turns that they are of. Returns '1' if there are more.
local function dispatch_pushes(now, keep_ms)
  local page, _, more = notices_behind(key_push_cursor(), keep_ms)
  for _, f in ipairs(page) do
    guarded(function()
      for push in string.gmatch(f.turn and redis.call('HGET', key_turn(f.turn), 'pushes') or '', '%S+') do
        local since = string.match(redis.call('HGET', key_turn(f.turn), 'push:' .. push) or '', '^%S+')
        if since and behind(f.id, since) then add_push(push, now, string.match(f.id, '^%d+'), f.kind, f.turn) end
      end
    end)
  end
  if #page > 0 then redis.call('SET', key_push_cursor(), page[#page].id, 'KEEPTTL') end
  return more
end
