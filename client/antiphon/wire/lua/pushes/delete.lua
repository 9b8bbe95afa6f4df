-- Send no more of these notifications about a turn. Repeating the call changes nothing.
-- @args turn push
-- -> OK
-- @include
if redis.call('HDEL', key_turn(turn), 'push:' .. push) == 1 then
  local others = {}
  for one in string.gmatch(redis.call('HGET', key_turn(turn), 'pushes') or '', '%S+') do
    if one ~= push then others[#others + 1] = one .. ' ' end
  end
  redis.call('HSET', key_turn(turn), 'pushes', table.concat(others))
end
return {'OK'}
