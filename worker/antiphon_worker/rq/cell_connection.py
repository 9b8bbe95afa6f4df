"""Presents one cell of a Redis Cluster as a single Redis to RQ's commands and workers (``--connection-class``).

RQ 3 puts ``RQ_KEY_PREFIX`` before all its keys. With the prefix of a cell (``rq:{17}``), all of them are in its slot.
"""

from __future__ import annotations

import re
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from redis import Redis, RedisCluster
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import ClusterNode
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from rq import defaults

from antiphon.errors import SettingsError
from antiphon.wire.connection.cluster import ELSEWHERE, SCHEMES, Place, cells_of, tags, without_cell
from antiphon.wire.connection.open import redact, without_durability

PREFIX = re.compile(r"rq:\{(\d+)\}")
ASK_SECONDS = 2.0
RETRIES = 5


class CellConnection(Redis):
    """A connection to the node that has the slot of a cell, even after the slot has moved.

    ``RQ_KEY_PREFIX`` names the cell, and the URL is that of the deployment.
    """

    cell_url = ""
    """The URL of the cell, for our own clients."""

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return a client, which connects on its first command. Raises ``SettingsError``."""
        try:
            cell_url = _cell_url(url)
            place = Place(without_durability(cell_url)[0])
        except ValueError as exc:
            raise SettingsError(f"The Redis URL {redact(url)!r} cannot be read: {exc}.") from None
        options.setdefault("retry", Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), RETRIES))
        redis: Any = super().from_url(place.topology.seeds[0], **options)
        pool = redis.connection_pool
        pool.connection_class = type("CellNode", (_OfCell, pool.connection_class), {"place": place})
        redis.cell_url = cell_url
        return redis


class _OfCell:
    """A connection to the node that has the slot of a cell, mixed into a class of redis-py."""

    place: Place

    def _connect(self: Any) -> Any:
        self.host, self.port = _owner(self.place)
        return super()._connect()  # type: ignore[misc]

    def read_response(self: Any, *args: Any, **options: Any) -> Any:
        """Read a reply. A redirection is raised as a lost connection, so that redis-py tries again."""
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except ELSEWHERE as exc:
            self.disconnect()
            raise RedisConnectionError(f"the slot of the cell is not here: {exc}") from exc


def _owner(place: Place) -> tuple[str, int]:
    """Ask the cluster for the node that has the slot. Raises ``ConnectionError``."""
    nodes = [ClusterNode(host, port) for host, port in place.topology.nodes]
    try:
        cluster = RedisCluster.from_url(
            place.topology.seeds[0], startup_nodes=nodes, require_full_coverage=False, protocol=2,
            socket_timeout=ASK_SECONDS, socket_connect_timeout=ASK_SECONDS,
        )  # fmt: skip
        node: Any = cluster.get_node_from_key(place.tag)
        cluster.close()
    except RedisClusterException as exc:
        raise RedisConnectionError(f"no node of the cluster names the slots: {exc}") from exc
    if node is None:
        raise RedisConnectionError(f"no node of the cluster has the slot {place.slot}")
    return str(node.host), int(node.port)


def _cell_url(url: str) -> str:
    """Return the URL of the cell that ``RQ_KEY_PREFIX`` names. Raises ``SettingsError`` and ``ValueError``."""
    if url.partition("://")[0] not in SCHEMES:
        raise SettingsError(
            f"CellConnection needs the URL of a cluster, as in redis+cluster://host:6379?cells=64, not {redact(url)!r}."
        )
    known = tags(cells_of(url))
    prefix: str = getattr(defaults, "RQ_KEY_PREFIX", "")
    found = PREFIX.fullmatch(prefix)
    if not prefix or found is None or found[1] not in known:
        hint = "it needs RQ 3" if not prefix else f"not {prefix!r}"
        raise SettingsError(
            "RQ_KEY_PREFIX must be the rq_prefix of a cell, as `antiphon cells --json` shows it "
            f"('rq:{{{known[0]}}}'), {hint}."
        )
    number = str(known.index(found[1]))
    given = dict(parse_qsl(urlsplit(url).query)).get("cell", number)
    if given != number:
        raise SettingsError(
            f"The URL names cell {given}, and RQ_KEY_PREFIX names cell {number}: leave out cell=."
        )
    return f"{without_cell(url)}&cell={number}"
