-- With which event the history had how many messages: `ends` has "<seq>:<messages> " for each time that it grew or was cut,
-- and goes on in `ends:<seq>` when it is full. "<seq>~<messages> " comes first where nothing was noted before.
local MOST_OF_ENDS = 64 -- what a small hash holds in a field

-- Add to `fields`, for HSET, that the history of `before` messages was cut to `kept`, if it was, and has `length` with event `last`.
local function note_ends(fields, ends, seq, before, kept, last, length)
  local new = not ends and before > 0 and string.format('%.0f~%d ', seq, before) or ''
  if kept then new = new .. string.format('%.0f:%d ', seq + 1, kept) end
  if length > (kept or before) then new = new .. string.format('%.0f:%d ', last, length) end
  local full = new ~= '' and ends and ends ~= '' and #ends + #new > MOST_OF_ENDS
  if full then fields[#fields + 1], fields[#fields + 2] = 'ends:' .. string.match(ends, '^%d+'), ends end
  if new ~= '' then fields[#fields + 1], fields[#fields + 2] = 'ends', (full and '' or ends or '') .. new end
end
