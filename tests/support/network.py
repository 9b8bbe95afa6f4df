"""Restricts tests to this machine: a connection to anywhere else raises an error."""

import atexit
import ipaddress
import random
import socket
import sys
from collections import deque
from typing import Any

OURS: set[ipaddress.IPv4Network] = set()
"""Networks on this machine: see ``support.hosts``."""


def forbid_other_machines() -> None:
    """Refuse every connection from this process to other machines, permanently."""
    sys.addaudithook(_watch)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect":
        return
    address = arguments[1]
    if isinstance(address, tuple) and not _is_here(str(address[0])):
        raise RuntimeError(f"A test tried to connect to {address!r}: tests use local servers only.")


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or any(address in net for net in OURS)


# Below the range that the system uses for outgoing connections, so that none of them can take the port of a
# server that is down for a moment.
_RANGE = range(20_000, 32_000)
# Not the global generator, which has the same seed in every process of a test run.
_random = random.SystemRandom()


_reserved: deque[socket.socket] = deque()
_RESERVED = 100


@atexit.register
def _release() -> None:
    for name in _reserved:
        name.close()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens, and which no other test process gets for a while."""
    for _ in range(1000):
        port = _random.choice(_RANGE)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                _reserve(port)
            except OSError:
                continue
            return port
    raise RuntimeError("No free port was found.")


def _reserve(port: int) -> None:
    """Reserve the port among test processes until a hundred others are reserved. Raises ``OSError`` if taken."""
    if sys.platform != "linux":  # other systems have no socket names that end with their process
        return
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0antiphon-test-port-{port}")
    except OSError:
        name.close()
        raise
    _reserved.append(name)
    if len(_reserved) > _RESERVED:
        _reserved.popleft().close()
