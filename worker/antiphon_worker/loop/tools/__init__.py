"""Tool calls: running them, the threads for synchronous ones, and which of them wait for a decision."""
