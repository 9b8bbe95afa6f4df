"""Agents by the A2A protocol, with tasks that are turns. The package ``a2a`` is imported by the first request."""
