"""Metrics and traces of a gateway, if enabled, without user content."""
