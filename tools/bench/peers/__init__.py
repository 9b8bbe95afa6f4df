"""Other queues, workflow engines and agent servers at the same work."""

from bench.peers.comparison import TITLE, measure

__all__ = ["TITLE", "measure"]
