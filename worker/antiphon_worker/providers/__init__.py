"""Model services with one small interface, independent of Redis and sessions."""
