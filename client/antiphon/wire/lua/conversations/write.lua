-- Store a record of a conversation of pydantic-ai and the entries that its history adds, if the stored record has the
-- revision that the caller has read ('' for none). What the history reaches lives as long as the record.
-- @args conversation expected revision head branches scope updated ttl_ms record entry_count rest...    branches as lines; '' for no head, scope or end; entries as id, parent, data
-- -> OK
-- -> CONFLICT              another revision is stored, or the entry `head` is not
-- @include conversations
local fields = key_pydantic_record(conversation)
local stored = redis.call('HMGET', fields, 'revision', 'family', 'scope')
if (stored[1] or '') ~= expected then return {'CONFLICT'} end
local own = {}
for i = 1, 3 * entry_count, 3 do own[rest[i]] = true end
local shared = head ~= '' and not own[head] and redis.call('HGET', key_pydantic_entry(head), 'family')
if head ~= '' and not own[head] and not shared then return {'CONFLICT'} end

local family = stored[2] or shared or revision
for i = 1, 3 * entry_count, 3 do
  redis.call('HSET', key_pydantic_entry(rest[i]), 'parent', rest[i + 1], 'data', rest[i + 2], 'family', family)
end
redis.call('HSET', fields, 'revision', revision, 'family', family, 'head', head, 'branches', branches, 'scope', scope,
  'record', record)
if stored[3] and stored[3] ~= scope then redis.call('ZREM', key_pydantic_scope(stored[3]), conversation) end
local is_new = redis.call('EXISTS', key_pydantic_family(family)) == 0
if ttl_ms == '' then redis.call('PERSIST', fields) else redis.call('PEXPIRE', fields, ttl_ms) end
redis.call('SADD', key_pydantic_family(family), conversation)
outlive(key_pydantic_family(family), ttl_ms, is_new)
list(key_pydantic_index(), conversation, updated, ttl_ms)
if scope ~= '' then list(key_pydantic_scope(scope), conversation, updated, ttl_ms) end
for entry in pairs(reached(head .. '\n' .. branches, {})) do outlive(key_pydantic_entry(entry), ttl_ms, own[entry]) end
return {'OK'}
