"""Converts the bytes of a streamed answer to increments: server-sent events, JSON and parts."""
