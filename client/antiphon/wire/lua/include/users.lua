-- The users of a session, each in a line of its field `users`.
local function names(users, user) return string.find('\n' .. users .. '\n', '\n' .. user .. '\n', 1, true) end

-- Note that a turn is of this user; of none that is nil or ''.
local function note_user(session, turn, user)
  if not user or user == '' then return end
  redis.call('HSET', key_turn(turn), 'user', user)
  local users = redis.call('HGET', key_session(session), 'users')
  if not users or not names(users, user) then
    redis.call('HSET', key_session(session), 'users', users and users .. '\n' .. user or user)
  end
end
