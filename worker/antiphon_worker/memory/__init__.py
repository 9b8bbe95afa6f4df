"""Memory in workers: indexes finished turns in the background, and recalls them for the model."""
