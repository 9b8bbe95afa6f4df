"""Sessions of this process, without a server: a cell in memory, on which the engine of workers runs."""
