"""What workers do beside turns: they submit the turns of schedules, and tell webhooks of the ends of turns."""
