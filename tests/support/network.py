"""The tests talk to this machine alone: a connection to anywhere else is a mistake, and says so."""

import ipaddress
import sys
from typing import Any


def forbid_other_machines() -> None:
    """Refuse every connection that leaves this machine, in this process and for good."""
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
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
