"""Sessions of this process, without a server: the worker's engine on a cell in memory."""
