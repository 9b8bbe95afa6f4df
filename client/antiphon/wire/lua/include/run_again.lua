-- A caller lets a failed turn run again. Does nothing if the session is closed. `again` names the call, so that a repetition is recognised.
local function run_again(session, turn, now, again, behind)
  if not is_over(session) and redis.call('HEXISTS', key_session(session), 'closed') == 1 then return nil end
  return requeue(session, turn, now, behind, again)
end
