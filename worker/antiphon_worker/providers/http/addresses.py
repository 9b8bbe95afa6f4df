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


_V4 = ipaddress.IPv4Network
_V6 = ipaddress.IPv6Network
SPECIAL_V4 = [
    *map(_V4, (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    )),
    _V4("168.63.129.16/32"),  # a public address at which every Azure machine reaches its host
]  # fmt: skip
"""IANA's special-purpose and multicast addresses, including those that its registry lists as globally reachable."""
GLOBAL_V6 = _V6("2000::/3")
SPECIAL_V6 = [*map(_V6, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"))]
"""The special-purpose addresses within ``GLOBAL_V6``, the only range that is assigned to hosts."""
TRANSLATED = [*map(_V6, ("::ffff:0:0/96", "64:ff9b::/96"))]
"""Addresses that lead to the IPv4 address at their end."""
ISATAP = (b"\0\0\x5e\xfe", b"\2\0\x5e\xfe")
"""The bytes before an IPv4 address at the end of an address with any beginning."""


def is_public(address: str) -> bool:
    """Return whether an IP address and any IPv4 address in it are public. Raises ``ValueError``."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in SPECIAL_V4)
    inner = str(ipaddress.IPv4Address(found.packed[-4:]))
    if any(found in network for network in TRANSLATED):
        return is_public(inner)
    if found not in GLOBAL_V6 or any(found in network for network in SPECIAL_V6):
        return False
    return found.packed[8:12] not in ISATAP or is_public(inner)


async def reached(host: str, port: int, allowed: Callable[[str], bool] | None = None) -> socket.socket:
    """Return a connected socket. Raises the ``OSError`` of the first address if none answers.

    ``allowed`` returns whether an address may be used. Raises ``PermissionError`` if none may.
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
