"""Other queues, workflow engines and agent servers doing the same work."""

from bench.peers.comparison import TITLE, measure

__all__ = ["TITLE", "measure"]
