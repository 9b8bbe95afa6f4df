"""Model services behind one small protocol. Providers know no Redis and no session."""
