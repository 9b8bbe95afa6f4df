-- Accept many turns in their order, each by itself, as `submit` would: a call for each of them gives the same answers.
-- @args turns...           per turn: the arguments of `submit`
-- -> SUBMITTED, answers    per turn: the answer of `submit`, or its error
-- @include publish rq_view life shares ended_turns inbox let_in holder notices conclude suspended resumed withdraw stop busy erasing requeue run_again users tenants accept
local EACH = 26
local now, answers = now_ms(), {}
for at = 1, #turns, EACH do
  local done, answer = pcall(accept, now, unpack(turns, at, at + EACH - 1))
  if not done and type(answer) ~= 'table' then answer = {err = tostring(answer)} end
  answers[#answers + 1] = answer
end
return {'SUBMITTED', answers}
