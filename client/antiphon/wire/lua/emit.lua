-- Log and publish a window of events for each of several sessions. Fence and batch name the work for one session: a batch
-- that is not newer was done before. A session with damaged keys gets an error, and the others go on.
-- @args windows...    per session: session, fence, batch, count, then `count` bodies
-- -> EMITTED, answers      per session: '' (done), a stop word (done, but stop), 'SUPERSEDED', or its error
-- @include publish
local now = now_ms()

local function emit(session, fence, batch, bodies) -- @often
  local f = redis.call('HMGET', key_session(session), 'fence', 'batch', 'stop', 'seq')
  if f[1] ~= fence or fence == '' then return 'SUPERSEDED' end
  if tonumber(batch) > tonumber(f[2]) then publish(session, now, bodies, f[4], 'batch', batch) end
  return f[3]
end

local answers, at, last = {}, 1, #windows
while at <= last do
  local count, bodies = tonumber(windows[at + 3]), {}
  for i = 1, count do bodies[i] = windows[at + 3 + i] end
  local done, answer = pcall(emit, windows[at], windows[at + 1], windows[at + 2], bodies)
  if not done and type(answer) ~= 'table' then answer = {err = tostring(answer)} end
  answers[#answers + 1] = answer
  at = at + 4 + count
end
return {'EMITTED', answers}
