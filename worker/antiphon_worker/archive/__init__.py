"""Sessions beyond their life in Redis: saving them to a store and restoring them from it."""
