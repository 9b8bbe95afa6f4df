"""Other queues at the same work."""

from bench.peers.comparison import measure

__all__ = ["measure"]
