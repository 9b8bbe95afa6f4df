"""Cells on a Redis Cluster. Each cell is a hash tag, whose slot the cluster keeps on one node and may move to another.

The connections of a cell lead to the node that has its slot. If a node answers that it does not have the slot
(``MOVED``, ``ASK``), has a part of it (``TRYAGAIN``) or is cut off (``CLUSTERDOWN``), the connection ends as if it were
lost. The command is then sent again, as after every loss, to the node that has the slot by then.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit
from weakref import WeakKeyDictionary, WeakValueDictionary

from redis.asyncio.connection import parse_url
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from antiphon.text import text_of
from antiphon.wire.connection.cancellable import cancellable
from antiphon.wire.connection.names import NAMES, given_names, numbers

if TYPE_CHECKING:
    from redis.asyncio.cluster import NodesManager

SCHEMES = ("redis+cluster", "rediss+cluster")
ELSEWHERE = (AskError, TryAgainError, ClusterDownError)  # MOVED is a kind of ASK
MOST_CELLS = 1024
ASK_SECONDS = 2.0
ASK_INTERVAL_SECONDS = 0.2
SHOWN = 1000  # characters of a stored text in an error
_CELLS = re.compile(rf"[0-9]+(&{NAMES}=[!-~]+)?")
"""The stored form of the cells of a deployment."""
FIRST_TAG = "0"
"""A tag of every deployment: the smallest number is always the first in its part of the slots."""


def shown(text: str) -> str:
    """Return the beginning of a text of any length."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def each_cell(url: str) -> list[str]:
    """Return a URL for each cell of a cluster that the URL names; without ``cell=``, it names all of them.

    Other URLs are those of one cell. Raises ``ValueError``.
    """
    if url.partition("://")[0] not in SCHEMES:
        return [url]
    cells = len(cell_names(url))
    given = dict(parse_qsl(urlsplit(url).query)).get("cell", f"0-{cells - 1}")
    first, dash, last = given.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < cells):
        raise ValueError(
            f"cell= must be the number of one of the {cells} cells, from 0, or a range, as in cell=0-15"
        )
    rest = without_cell(url)
    return [f"{rest}&cell={number}" for number in range(int(first), int(last) + 1)]


def without_cell(url: str) -> str:
    """Return the URL of a whole cluster for that of some of its cells. Other URLs stay as they are."""
    if url.partition("://")[0] not in SCHEMES:
        return url
    return re.sub(r"([?&])cell=[^&]*&?", r"\1", url).rstrip("&")


def cells_of(url: str) -> int:
    """Return how many cells the deployment has. Raises ``ValueError``."""
    given = dict(parse_qsl(urlsplit(url).query)).get("cells", "")
    if not (given.isascii() and given.isdigit() and 1 <= int(given) <= MOST_CELLS):
        raise ValueError(
            f"cells= must be the number of cells of the deployment, 1 to {MOST_CELLS}, as in "
            "redis+cluster://host:6379?cells=64"
        )
    return int(given)


def cell_names(url: str) -> Sequence[str]:
    """Return the names of all cells of the deployment, in their order. Raises ``ValueError``."""
    cells, names = cells_of(url), given_names(url)
    if names and len(names) != cells:
        raise ValueError(f"{NAMES}= must be the names of all {cells} cells, in their order, not {len(names)}")
    return names or numbers(cells)


@cache
def tags(cells: int) -> tuple[str, ...]:
    """Return the hash tags of this many cells, which divide the slots evenly.

    The tag of the first cell is the first number whose slot is in the first part of the slots, and so on.

    >>> tags(3)
    ('2', '3', '0')
    """
    found: dict[int, str] = {}
    for number in count():
        part = key_slot(b"%d" % number) * cells // REDIS_CLUSTER_HASH_SLOTS
        found.setdefault(part, str(number))
        if len(found) == cells:
            return tuple(found[part] for part in range(cells))
    raise AssertionError


class CellsDiffer(ClusterError):
    """The deployment has a different number of cells than the URL, or different names for them."""


class Topology:
    """Which nodes have the cells, as the cluster last reported. It is asked again when that turns out to be wrong.

    The cells of one deployment share it, in all event loops of a process: a cluster of 16,384 slots takes long to list.
    """

    def __init__(self, url: str, cells: int) -> None:
        self.key = ""
        """Where the deployment stores its cells."""
        names = given_names(url)
        self.cells = f"{cells}&{NAMES}={','.join(names)}" if names else str(cells)
        """The number of cells, with their names if they have any, in the form of the URL after ``cells=``."""
        self._checked = False
        parts = urlsplit(url)
        credentials, at, hosts = parts.netloc.rpartition("@")
        query = urlencode(
            [pair for pair in parse_qsl(parts.query) if pair[0] not in ("cells", "cell", NAMES)]
        )
        seeds = [
            f"{parts.scheme.partition('+')[0]}://{credentials}{at}{seed}?{query}" for seed in hosts.split(",")
        ]
        self.seeds = seeds
        self.nodes = [
            (known.get("host", "localhost"), known.get("port", 6379)) for known in map(parse_url, seeds)
        ]
        """The hosts and ports of the nodes, the known ones first."""
        self._slots = [key_slot(tag.encode()) for tag in tags(cells)]
        self._owners: dict[int, tuple[str, int]] = {}
        self._asking: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._asked_at = 0.0
        self._in_doubt = True

    def doubt(self) -> None:
        """Ask the cluster before the next connection is opened."""
        self._in_doubt = True

    def owner(self, slot: int) -> tuple[str, int] | None:
        """Return the node that has a slot, as far as is known."""
        return self._owners.get(slot)

    async def find(self, slot: int) -> tuple[str, int]:
        """Return the node that has a slot. Raises ``ConnectionError``.

        Raises ``ClusterError`` if the deployment was created with other cells.
        """
        async with self._asking.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if self._in_doubt:
                await asyncio.sleep(self._asked_at + ASK_INTERVAL_SECONDS - time.monotonic())
                try:
                    await self._ask()
                finally:
                    self._asked_at = time.monotonic()
        owner = self._owners.get(slot)
        if owner is None:
            self.doubt()
            raise RedisConnectionError(f"no node of the cluster has the slot {slot}")
        return owner

    async def _ask(self) -> None:
        from redis.asyncio.cluster import ClusterNode, RedisCluster  # takes long to import

        nodes = [ClusterNode(host, port) for host, port in self.nodes]
        cluster = RedisCluster.from_url(
            self.seeds[0], startup_nodes=nodes, require_full_coverage=False, protocol=2,
            socket_timeout=ASK_SECONDS, socket_connect_timeout=ASK_SECONDS,
        )  # fmt: skip
        manager = cluster.nodes_manager  # the client itself would also need the node that has the first slots
        connection = cancellable(manager.connection_kwargs["connection_class"])
        manager.connection_kwargs["connection_class"] = connection
        for node in manager.startup_nodes.values():
            node.connection_class = connection
        try:
            self._in_doubt = False
            await manager.initialize()
            first = {
                slot: manager.slots_cache[slot][0] for slot in self._slots if slot in manager.slots_cache
            }
            self._owners = {slot: (str(node.host), int(node.port)) for slot, node in first.items()}
            known = [(str(node.host), int(node.port)) for node in manager.nodes_cache.values()]
            self.nodes = list(dict.fromkeys([*known, *self.nodes]))
            await self._check_cells(manager)
        except CellsDiffer:
            self.doubt()
            raise
        except (RedisClusterException, RedisError, OSError) as exc:
            self.doubt()
            raise RedisConnectionError(f"no node of the cluster names the slots: {exc}") from exc
        finally:
            await asyncio.shield(_close(manager))  # a cancellation would leave connections open

    async def _check_cells(self, manager: NodesManager) -> None:
        """Compare the cells with the stored ones, once; the first process stores them."""
        if self._checked:
            return
        try:
            node: Any = manager.slots_cache[key_slot(self.key.encode())][0]
            found = await node.execute_command("GET", self.key)
            if found is None:
                await node.execute_command("SET", self.key, self.cells, "NX")
                found = await node.execute_command("GET", self.key)
        except (LookupError, RedisError, OSError) as exc:
            if "WRONGTYPE" not in str(exc):  # that node is away or full: the other cells work without it
                return
            found = b""
        stored = text_of(found)
        if not _CELLS.fullmatch(stored):
            raise CellsDiffer(
                f"The key {self.key} contains {shown(stored)!r}, not the cells of the deployment: delete it if "
                "the URLs of all processes have the right cells. Then the next process writes them."
            )
        if stored != self.cells:
            raise CellsDiffer(
                f"The deployment was created with other cells than cells={shown(self.cells)}: write "
                f"cells={shown(stored)} in its URL."
            )
        self._checked = True


async def _close(manager: NodesManager) -> None:
    await manager.aclose()
    await manager.aclose("startup_nodes")


_known: WeakValueDictionary[tuple[str, ...], Topology] = WeakValueDictionary()


class Place:
    """One cell of a cluster: its number, name and hash tag, and the tag's slot. Raises ``ValueError``."""

    def __init__(self, url: str) -> None:
        number = dict(parse_qsl(urlsplit(url).query)).get("cell", "")
        self.cells = cells_of(url)
        if not (number.isascii() and number.isdigit() and int(number) < self.cells):
            raise ValueError(f"cell= must be the number of one of the {self.cells} cells, from 0")
        if urlsplit(url).path.strip("/") not in ("", "0"):
            raise ValueError(
                "a cluster has database 0 only: use ANTIPHON_PREFIX for several deployments on one"
            )
        self.number = int(number)
        self.names = cell_names(url)
        """The names of all cells of the deployment."""
        self.name = self.names[self.number]
        self.tag = tags(self.cells)[self.number]
        self.slot = key_slot(self.tag.encode())
        self.topology = Topology(url, self.cells)
        self.nodes = list(self.topology.nodes)
        """The nodes that the URL names."""

    def belong(self, key: str) -> None:
        """Share what is known of the cluster with the other cells of the deployment that has this key."""
        self.topology = _known.setdefault((*self.topology.seeds, self.topology.cells, key), self.topology)
        self.topology.key = key

    @property
    def owner(self) -> tuple[str, int] | None:
        """The node that has the slot, as far as is known."""
        return self.topology.owner(self.slot)


class OfCell:
    """A connection to the node that has the slot of a cell, mixed into a class of redis-py."""

    place: Place
    follows_primary = True
    of_cluster = True

    @property
    def stale(self: Any) -> bool:
        """Whether another node has the slot, as far as this process knows."""
        owner = self.place.owner
        return owner is not None and owner != (self.host, self.port)

    async def _connect(self: Any) -> None:
        self.host, self.port = await self.place.topology.find(self.place.slot)
        await super()._connect()  # type: ignore[misc]

    async def connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        """Connect. After a failure, the next attempt asks the cluster again where the slot is."""
        try:
            await super().connect_check_health(*args, **options)  # type: ignore[misc]
        except (RedisError, OSError) as exc:
            self.place.topology.doubt()
            if isinstance(exc.__cause__, CellsDiffer):  # redis-py wraps what it does not know
                raise exc.__cause__ from None
            raise

    async def read_response(self: Any, *args: Any, **options: Any) -> Any:
        """Read a reply. A reply that sends us elsewhere counts as a lost connection."""
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except ELSEWHERE as exc:
            await self.disconnect(nowait=True)
            raise self._elsewhere(exc) from exc

    def error_of(self: Any, text: str) -> Exception:
        """Return the exception for the text of an error."""
        error: Exception = super().error_of(text)  # type: ignore[misc]
        return self._elsewhere(error) if isinstance(error, ELSEWHERE) else error

    def _elsewhere(self, error: Exception) -> Exception:
        self.place.topology.doubt()
        return RedisConnectionError(f"the slot of the cell is not here: {error}")
