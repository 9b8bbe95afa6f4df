-- Change which revisions of agents sessions take, as JSON of all agents, if that is still what the caller has read.
-- A repetition finds what it has written. An empty text removes it: then turns cost no more than without it.
-- @args before after
-- -> PROMOTED
-- -> CHANGED, text    what it is now
-- @include
local current = redis.call('GET', key_promotions()) or ''
if current == after then return {'PROMOTED'} end
if current ~= before then return {'CHANGED', current} end
if after == '' then redis.call('DEL', key_promotions()) else redis.call('SET', key_promotions(), after) end
return {'PROMOTED'}
