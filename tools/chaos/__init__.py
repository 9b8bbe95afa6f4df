"""Chaos with real processes: everything is killed, stopped and cut at random, then every promise is checked."""
