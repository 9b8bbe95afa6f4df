-- The cell's notices: that a run has ended, or that a turn waits for somebody. The log exists only while somebody asks for
-- it (`notices/follow`). Where nobody does, nothing is written. A damaged log keeps no turn from its end.
local MOST_NOTICES = 100000

local function notice(kind, session, turn, seq, tenant)
  local id = redis.pcall('XADD', key_notices(), 'NOMKSTREAM', 'MAXLEN', '~', MOST_NOTICES, '*', 'kind', kind,
    'session', session, 'turn', turn, 'seq', seq, 'tenant', tenant or '')
  if type(id) == 'string' then redis.pcall('PUBLISH', key_live(''), id) end -- the channel of no session
end
