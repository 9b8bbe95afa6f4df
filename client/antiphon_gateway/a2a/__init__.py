"""Agents over the A2A protocol, where a task is a turn. The first request imports the package ``a2a``."""
