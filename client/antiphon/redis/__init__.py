"""Sessions and turns in Redis as a client sees them: submit, read, edit, list and follow."""
