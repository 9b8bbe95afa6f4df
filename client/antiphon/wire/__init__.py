"""The wire format in Redis: keys, scripts, connections and RQ's records."""
