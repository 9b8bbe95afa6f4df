"""Other queues at the same work."""

from bench.peers.comparison import TITLE, measure

__all__ = ["TITLE", "measure"]
