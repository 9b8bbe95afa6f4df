"""Ports for servers that a test kills and starts again."""

import random
import socket

# Below the range that the system gives to outgoing connections, so that none of them can take the port of a
# server that is away for a moment.
_RANGE = range(20_000, 32_000)
# Not the global generator: that one has the same seed in every process of a test run.
_random = random.SystemRandom()


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    for _ in range(1000):
        port = _random.choice(_RANGE)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("No free port was found.")
