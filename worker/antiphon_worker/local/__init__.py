"""The runtime that runs turns in this process, without a server."""
