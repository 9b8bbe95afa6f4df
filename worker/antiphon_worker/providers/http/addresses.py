"""Connects to a host with several addresses, and uses the first one that answers.

A machine with broken IPv6 then reaches a service over IPv4 with a short delay (RFC 8305, "happy eyeballs").
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import Any, TypeAlias

Address: TypeAlias = tuple[int, int, int, str, Any]
HEAD_START_SECONDS = 0.25  # the time for an address before the next one is tried as well


def is_public(address: str) -> bool:
    """Return whether an IP address is public, including one embedded in an IPv6 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(found.packed[-4:])
        found = inner or found
    return found.is_global and not found.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


async def reached(host: str, port: int, allowed: Callable[[str], bool] | None = None) -> socket.socket:
    """Return a connected socket. Raises the ``OSError`` of the first address if none answers.

    ``allowed`` says of each address whether it may be used; ``PermissionError`` says that none may.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if allowed is not None:
        found = [one for one in found if allowed(str(one[4][0]))]
        if not found:
            raise PermissionError("the host has no public address")
    waiting = _alternating(found)
    if len(waiting) == 1:
        return await _connected(waiting[0])
    tries: set[asyncio.Task[socket.socket]] = set()
    failures: list[BaseException] = []
    try:
        while waiting or tries:
            if waiting:
                tries.add(asyncio.create_task(_connected(waiting.pop(0))))
            head_start = HEAD_START_SECONDS if waiting else None
            done, _ = await asyncio.wait(tries, timeout=head_start, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                tries.discard(one)
                error = one.exception()
                if error is None:
                    return one.result()
                failures.append(error)
        raise failures[0]
    finally:
        await _give_up(tries)


def _alternating(found: Iterable[Address]) -> list[Address]:
    """Alternate the two kinds of addresses, the preferred kind first."""
    kinds: dict[int, list[Address]] = {}
    for address in found:
        kinds.setdefault(address[0], []).append(address)
    return [one for one in chain.from_iterable(zip_longest(*kinds.values())) if one is not None]


async def _connected(address: Address) -> socket.socket:
    family, kind, protocol, _, place = address
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, place)
    except BaseException:
        made.close()
        raise
    return made


async def _give_up(tries: set[asyncio.Task[socket.socket]]) -> None:
    for one in tries:
        one.cancel()
    for outcome in await asyncio.gather(*tries, return_exceptions=True):
        if isinstance(outcome, socket.socket):
            outcome.close()
