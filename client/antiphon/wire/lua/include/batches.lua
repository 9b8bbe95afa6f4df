-- Model steps that are answered in batches. `batch_step:<id>` has the turn, its session and run, what the turn waits for, and the request
-- until it is sent. `batch_outbox:<group>` has those that are not in a batch yet, and `batch_groups` when they are to be sent.
-- `batch:<label>` is a batch, `batch_steps:<label>` its steps, and `batches` says when it is looked at next.
local BATCH_TURN_OVER = {finished = true, failed = true, cancelled = true}

-- The turn, session and wait of a step whose turn still needs the answer, and the turn's status; nothing where one of them is damaged.
local function waiting_turn(id)
  local turn, session, wait, run = unpack(redis.pcall('HMGET', key_batch_step(id), 'turn', 'session', 'wait', 'run'))
  if not turn then return nil end
  local status, now_run = unpack(redis.pcall('HMGET', key_turn(turn), 'status', 'run'))
  if not status or BATCH_TURN_OVER[status] or now_run ~= run then return nil end
  return turn, session, wait, status
end
