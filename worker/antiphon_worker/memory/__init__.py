"""Memory in workers: finished turns are indexed beside the turns, and recalled for the model."""
