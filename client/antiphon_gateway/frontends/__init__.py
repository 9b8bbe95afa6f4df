"""Protocols of front ends: the UI message stream of the AI SDK, and AG-UI, with their routes."""
