"""Copies of sessions: forks, and what an archive holds."""
