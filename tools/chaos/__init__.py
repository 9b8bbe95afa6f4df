"""Chaos with real processes: kill, stop and cut off everything at random, then check every promise."""
