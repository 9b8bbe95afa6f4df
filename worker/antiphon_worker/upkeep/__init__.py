"""What workers do beside turns: they submit those of schedules, tell webhooks of ends, and let operators see."""
