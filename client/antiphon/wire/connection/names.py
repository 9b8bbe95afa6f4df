"""The names of cells. They determine the cell of each session, wherever the servers are.

Without ``names=`` in its URL, the name of a cell of a list is its address, and that of a cell of a cluster its number.
A cell that moves keeps its name, and the URL of its new place has it: ``redis://new/0?names=old:6379/0``. The URL of a
cluster has the names of all its cells, in their order: ``redis+cluster://new?cells=2&names=a:6379/0,b:6379/0``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio import Redis

NAMES = "names"
_OPTION = re.compile(rf"([?&]){NAMES}=[^&]*&?")


def given_names(url: str) -> Sequence[str]:
    """Return the names in a URL; empty without any. Raises ``ValueError``."""
    given = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True)).get(NAMES)
    return () if given is None else _checked(given)


@lru_cache(8)  # the URLs of all cells of a cluster have the same names, which may be a thousand
def _checked(given: str) -> tuple[str, ...]:
    names = tuple(given.split(","))
    if not all(re.fullmatch(r"[!-~]+", name) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"{NAMES}= must be different names without spaces, as in {NAMES}=a:6379/0,b:6379/0")
    return names


def split_names(url: str) -> tuple[str, str]:
    """Return the URL of one cell without its name, and the name, '' if it has none. Raises ``ValueError``."""
    names = given_names(url)
    if len(names) > 1:
        raise ValueError(f"{NAMES}= must be the one name of this cell: only a cluster has several")
    return _OPTION.sub(r"\1", url).rstrip("?&"), "".join(names)


def numbered(number: int) -> str:
    """Return the name of a cell of a cluster that has no other name."""
    return f"cell-{number}"


@lru_cache(8)
def numbers(cells: int) -> tuple[str, ...]:
    """Return the names of the cells of a cluster that have no other names."""
    return tuple(numbered(number) for number in range(cells))


def in_order(names: Sequence[str]) -> Sequence[str]:
    """Return the names of numbered cells by their numbers; none if cells have other names."""
    ordered = numbers(len(names))
    return ordered if set(ordered) == set(names) else ()


def database_of(redis: Redis) -> int:
    """Return the database number of a client. Pub/sub channels are shared by all databases."""
    return int(redis.connection_pool.connection_kwargs.get("db") or 0)


def address_of(redis: Redis) -> str:
    """Return the address of a client's server, or the number of its cell on a cluster."""
    pool: Any = redis.connection_pool
    if place := getattr(pool, "place", None):
        return numbered(place.number)
    kwargs = pool.connection_kwargs
    address = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
    return f"{getattr(pool, 'service_name', '') or address}/{database_of(redis)}"


def name_of(redis: Redis) -> str:
    """Return the name of a client's cell."""
    return getattr(redis.connection_pool, "cell_name", "") or address_of(redis)


def names_beside(redis: Redis | None) -> Sequence[str]:
    """Return the names of all cells of the cluster that a client's cell belongs to; none if there is no cluster."""
    place = getattr(getattr(redis, "connection_pool", None), "place", None)
    return place.names if place else ()


def place_of_cell(redis: Redis) -> str:
    """Return the address of a client's server, on a cluster with the nodes that the URL names."""
    place = getattr(redis.connection_pool, "place", None)
    nodes = ",".join("{}:{}".format(*node) for node in place.nodes) if place else ""
    return f"{address_of(redis)}{nodes and ' of '}{nodes}"


def node_of(redis: Redis) -> str:
    """Return the address of a client's server; on a cluster that of the node that has the cell's slot, if known."""
    if place := getattr(redis.connection_pool, "place", None):
        return "{}:{}".format(*place.owner) if place.owner else ""
    return address_of(redis).rpartition("/")[0]
