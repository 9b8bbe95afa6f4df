-- Read where a session's contents are that are in a byte store, and of those on their way to it.
-- @args session
-- -> PLACES, places
-- @include files
return {'PLACES', places_of(session)}
