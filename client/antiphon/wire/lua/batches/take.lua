-- Take a batch that is due: one that is to be looked at, or that its worker has not sent. Otherwise make one, `label`, of steps that are due,
-- without those whose turns have ended. For `lease_ms` no other worker takes it. A repetition returns the batch that the call made;
-- an older one that it took is due again when its lease is over. Only batches of these `accounts` are taken: each is
-- a provider, with a space and the account of the group if that has one. A batch stays for `keep_ms` after it was taken with steps that a
-- turn needed. What is damaged is left alone for a minute, and is an error where nothing else is due.
-- @args label lease_ms size most_bytes keep_ms accounts...
-- -> NONE, more            `more`: 1 if something will be due
-- -> TAKEN, label, fence, fields, all steps, steps that a turn needs
-- @include damage batches
if redis.call('EXISTS', key_batches(), key_batch_groups()) == 0 then return {'NONE', 0} end
local MOST_LOOKED_AT = 100
local now, known = now_ms(), {}
for _, account in ipairs(accounts) do known[account] = true end

local function is_known(group)
  local provider, _, _, _, account = unpack(cjson.decode(group))
  return known[(account or '') == '' and provider or provider .. ' ' .. account]
end

-- All steps of a batch, and those whose turns still need an answer. The others go, with their requests.
local function steps_of(name)
  local kept, all = {}, redis.call('LRANGE', key_batch_steps(name), 0, -1)
  for _, id in ipairs(all) do
    if waiting_turn(id) then kept[#kept + 1] = id else redis.call('DEL', key_batch_step(id)) end
  end
  return all, kept
end

local function taken(name)
  local fence, all, kept = redis.call('INCR', key_fence()), steps_of(name)
  redis.call('ZADD', key_batches(), now + lease_ms, name)
  redis.call('HSET', key_batch(name), 'fence', fence)
  for _, key in ipairs(kept[1] and {key_batch(name), key_batch_steps(name), key_batches()} or {key_batches()}) do
    redis.call('PEXPIRE', key, keep_ms)
  end
  return {'TAKEN', name, fence, redis.call('HGETALL', key_batch(name)), all, kept}
end

-- Move steps of a group to a batch of their own. Returns whether there are any.
local function made(group)
  local outbox, count, bytes = key_batch_outbox(group), 0, 0
  for _, id in ipairs(redis.call('ZRANGE', outbox, 0, size - 1)) do
    local more = tonumber(redis.pcall('HSTRLEN', key_batch_step(id), 'body')) or 0
    if count > 0 and bytes + more > tonumber(most_bytes) then break end
    redis.call('ZREM', outbox, id)
    if waiting_turn(id) then
      count, bytes = count + 1, bytes + more
      redis.call('RPUSH', key_batch_steps(label), id)
    else
      redis.call('DEL', key_batch_step(id))
    end
  end
  local oldest = redis.call('ZRANGE', outbox, 0, 0)[1]
  if oldest then redis.call('ZADD', key_batch_groups(), now, group) else redis.call('ZREM', key_batch_groups(), group) end
  if count == 0 then return false end
  redis.call('HSET', key_batch(label), 'group', group, 'created', now)
  return true
end

local function due_batch(name)
  local group = redis.call('HGET', key_batch(name), 'group')
  if not group then
    redis.call('ZREM', key_batches(), name) -- it has expired
  elseif is_known(group) then
    return taken(name)
  end
end

local function due_group(group)
  if is_known(group) and made(group) then return taken(label) end
end

local made_before = redis.call('HGET', key_batch(label), 'group')
if made_before and is_known(made_before) then return taken(label) end

local problem
for _, one in ipairs({{key_batches(), due_batch}, {key_batch_groups(), due_group}}) do
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', one[1], '-inf', now, 'LIMIT', 0, MOST_LOOKED_AT)) do
    local whole, found = guarded(one[2], name)
    if whole and found then return found end
    if not whole then
      redis.call('ZADD', one[1], now + QUARANTINE_MS, name)
      problem = found
    end
  end
end
if problem then error({err = problem}, 0) end
return {'NONE', redis.call('EXISTS', key_batches(), key_batch_groups())}
