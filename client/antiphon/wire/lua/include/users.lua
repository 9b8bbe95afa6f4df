-- The users of a session, each in a line of its field `users`.
local function names(users, user) return string.find('\n' .. users .. '\n', '\n' .. user .. '\n', 1, true) end

-- Note that a turn is of this user, and count it until it ends, where a tenant limits the number of them: `user_turns:<hash>`
-- holds them. Without `tenant` and `user`, the turn runs again, and both are its own.
local KEEP_USER_TURNS_MS = 31 * 86400000
local function note_user(session, turn, now, tenant, user)
  if not user then tenant, user = unpack(redis.call('HMGET', key_turn(turn), 'tenant', 'user')) end
  if not user or user == '' then return end
  redis.call('HSET', key_turn(turn), 'user', user)
  local users = redis.call('HGET', key_session(session), 'users')
  if not users or not names(users, user) then
    redis.call('HSET', key_session(session), 'users', users and users .. '\n' .. user or user)
  end
  if (tenant or '') == '' or not limit_of(tenant, 'user_turns') then return end
  redis.call('ZADD', key_user_turns(hash_of_user(tenant, user)), now, turn)
  redis.call('PEXPIRE', key_user_turns(hash_of_user(tenant, user)), KEEP_USER_TURNS_MS)
end
