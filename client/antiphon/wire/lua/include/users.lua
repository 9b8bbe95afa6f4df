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

local function hash_of_user(tenant, user) return redis.sha1hex(tenant .. ' ' .. user) end

-- Count a turn that has not ended for its user, where their number is limited. `user_turns:<hash>` holds them.
local KEEP_USER_TURNS_MS = 31 * 86400000
local function count_for_user(tenant, user, turn, now)
  if not tenant or not user or user == '' or not limit_of(tenant, 'user_turns') then return end
  redis.call('ZADD', key_user_turns(hash_of_user(tenant, user)), now, turn)
  redis.call('PEXPIRE', key_user_turns(hash_of_user(tenant, user)), KEEP_USER_TURNS_MS)
end

-- Note and count it for a turn that runs again.
local function note_again(session, turn, now)
  local tenant, user = unpack(redis.call('HMGET', key_turn(turn), 'tenant', 'user'))
  note_user(session, turn, user)
  count_for_user(tenant, user, turn, now)
end
