"""Connections to Redis: opening them, pipelining scripts over one, and sharing one subscription."""
