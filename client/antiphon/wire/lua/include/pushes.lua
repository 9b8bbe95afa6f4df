-- Notifications about single turns. A turn has the field `push:<id>` for each ("<since> <content>"), and their ids in
-- `pushes`; they go with it. `pushes` is the sorted set of what is to be sent, by the time of the next try. `push_cursor` is
-- the last notice that was handed out, while turns may have such fields. Where the turn of a notice is damaged then, an entry for
-- WHOLE_TURN has that notice in place of the time.
local PUSH_CURSOR_MS, WHOLE_TURN = 40 * 86400000, '*'

local function add_push(push, now, at, kind, turn)
  redis.call('ZADD', key_pushes(), now, table.concat({push, string.format('%.0f', now), at, kind, turn}, ' '))
end

-- Hand a notice to those who had asked for it before.
local function hand_out(turn, id, kind, now)
  for push in string.gmatch(redis.call('HGET', key_turn(turn), 'pushes') or '', '%S+') do
    local since = string.match(redis.call('HGET', key_turn(turn), 'push:' .. push) or '', '^%S+')
    if since and behind(id, since) then add_push(push, now, string.match(id, '^%d+'), kind, turn) end
  end
end

-- Hand new notices to the turns that they are of. Returns '1' if there are more.
local function dispatch_pushes(now, keep_ms)
  local page, _, more = notices_behind(key_push_cursor(), keep_ms)
  for _, f in ipairs(page) do
    if f.turn and not guarded(hand_out, f.turn, f.id, f.kind, now) then add_push(WHOLE_TURN, now, f.id, f.kind, f.turn) end
  end
  if #page > 0 then redis.call('SET', key_push_cursor(), page[#page].id, 'KEEPTTL') end
  return more
end
