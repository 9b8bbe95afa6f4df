-- Ask for the cell's notices for a time. The log begins with an entry of its own, or stays as long as this asks for.
-- @args keep_ms
-- -> OK, id                the newest entry: what comes behind it is new
-- @include following
return {'OK', follow_notices(keep_ms)}
