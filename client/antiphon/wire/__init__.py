"""What stands in Redis: keys, scripts, connections and RQ's records."""
