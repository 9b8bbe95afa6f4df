"""Moves a cell to another server: copies it while it is used, freezes its writes for the last changes, and switches it.

Each of the four steps can be repeated, by this mover or by another one after it died:

1. The target gets a marker that names the source (``from``). It serves no process until the cell has arrived.
2. A pass copies all keys. Further passes copy the keys that the server has reported as changed since the last pass,
   until a pass is short. Then the source pauses all writes, for a limited time, and one more pass copies the rest. If
   the server does not report changes, or a connection was lost, a pass finds the keys that differ from their copies.
3. One script at the source checks that nothing was written since the pause began, and leaves a marker (``to``).
4. One script at the target puts the shared keys in place and removes the marker.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

from msgspec import Struct
from redis.exceptions import RedisError

from antiphon.errors import StoreUnavailable, StoreUnsupported, UsageError
from antiphon.text import number, text_of
from antiphon.wire.cell import Cell
from antiphon.wire.changes import Changes
from antiphon.wire.connection.cluster import shown
from antiphon.wire.errors import asked, unexpected
from antiphon.wire.keys import SHARED, Keys
from antiphon.wire.scripts import load_script

OLDEST = 7
BATCH = 500
COPIED_AT_ONCE = 50
BYTES_AT_ONCE = 8_000_000
"""After this many bytes, a server may serve other clients before it reads or writes the next keys."""
MOST_PASSES = 20
SHORT_SECONDS = 0.05
"""A pass as short as this is the last one before the pause."""
NOT_COPIED = ("moved", "cells")
RQ_QUEUES = "rq:queues"
MARKS = """
local found, bytes = {}, 0
for i = 2, #ARGV do
  local dump = redis.call('DUMP', ARGV[i]) or ''
  local mark = dump ~= '' and string.sub(dump, -8) .. ' ' .. redis.call('PEXPIRETIME', ARGV[i]) or ''
  found[#found + 1] = {mark, #dump}
  bytes = bytes + #dump
  if bytes >= tonumber(ARGV[1]) then break end
end
return found
"""
"""Returns each key's checksum with its expiry time, and its size in bytes, until ARGV[1] bytes were read."""


class Found(NamedTuple):
    """A key of the source, where its copy is, and what `MARKS` returns for the key."""

    key: bytes
    place: bytes
    mark: bytes
    size: int


class MovedCell(Struct):
    """A cell that was moved: how many keys it has, how often it was copied, and how long its writes were paused."""

    name: str
    target: str
    keys: int = 0
    passes: int = 0
    paused_seconds: float = 0.0


class Mover:
    """Moves one cell: ``begin``, then ``move``. ``source`` and ``target`` are its places, each with its URL.

    The URLs contain no password. ``proof`` proves to processes with the password of the source that they may use it at
    the target. Writes are paused for at most ``pause`` seconds. ``say`` receives a sentence about each pass. ``cells``
    is how many cells move: all that the deployment lists.
    """

    def __init__(
        self,
        source: tuple[Cell, str],
        target: tuple[Cell, str],
        *,
        pause: float,
        say: Callable[[str], None],
        proof: str = "",
        cells: int = 1,
    ) -> None:
        self._source, self._from = source
        self._target, self._to = target
        for cell in (self._source, self._target):
            cast("Any", cell.redis.connection_pool).moved_key = ""  # served despite the markers
        self._proof = proof
        self._cells = cells
        self._pause = pause
        self._say = say
        self._marker = f"from {self._from} {secrets.token_hex(8)}"
        self._copied: dict[bytes, bytes] = {}  # the keys of the target, with the marks of their originals
        self._unchecked: set[bytes] = set()  # places copied since jobs were last checked
        self._left = False  # whether the cell left the source with an earlier mover
        self._changes = Changes(self._source)
        self._done = MovedCell(self._source.name, self._to)

    async def begin(self) -> None:
        """Close the target to all processes until the cell has arrived. Raises ``StoreError`` and ``UsageError``."""
        await self._check_servers()
        self._left = (await self._marker_of(self._source)).split(" ")[:2] == ["to", self._to]
        if self._left:
            self._marker = await self._marker_left()
        else:
            await self._begin()

    async def move(self) -> MovedCell:
        """Move the cell, or finish what an earlier mover began. Raises ``StoreError`` and ``UsageError``."""
        if not self._left:
            try:
                await self._copy_until_short()
                await self._switch()
            finally:
                self._changes.close()
        await self._arrive()
        await self._remove_source()
        return self._done

    async def _check_servers(self) -> None:
        """Raise if a server is too old, or if both are the same: the pause would stop the copies as well."""
        servers: set[str] = set()
        for cell, place in ((self._source, self._from), (self._target, self._to)):
            found: dict[str, Any] = await asked(cell.redis.info("server"))
            version = str(found.get("redis_version", "0"))
            if int(version.partition(".")[0]) < OLDEST:
                raise StoreUnsupported(
                    f"A cell moves between servers of version 7 or newer: {place} has {version}."
                )
            servers.add(str(found["run_id"]))
        if len(servers) == 1:
            raise UsageError(
                f"{self._from} and {self._to} are on the same server: a cell moves only to another one."
            )

    async def _marker_left(self) -> str:
        """Return the marker of a mover that has switched the cell: '' if it has arrived. Raises ``UsageError``."""
        there = await self._marker_of(self._target)
        if there and not there.startswith(f"from {self._from} "):
            raise UsageError(
                f"{self._from} does not have the cell: it moved to {self._to}, whose marker is {shown(there)!r}."
            )
        return there

    async def _begin(self) -> None:
        """Leave the marker at the target. Raises ``UsageError`` if something else is there."""
        there = await self._marker_of(self._target)
        place = there.partition(" ")[2].partition(" ")[0]
        if (there and place != self._from) or (not there and await self._has_keys(self._target)):
            what = f"has the marker {shown(there)!r}" if there else "has keys of a deployment"
            raise UsageError(f"{self._to} {what}: a cell moves only to a place that is empty.")
        away = await self._marker_of(self._source)
        if away:
            raise UsageError(f"{self._from} does not have the cell: its marker is {shown(away)!r}.")
        await self._check_list()
        keys = self._target.keys
        pipe = self._target.redis.pipeline(transaction=True)
        pipe.set(keys.moved, self._marker)
        for key in guards(keys):
            pipe.set(key, "moved")
        await asked(pipe.execute())

    async def _check_list(self) -> None:
        """Raise ``UsageError`` if the deployment lists more cells: their names determine the cell of each session."""
        listed = number(await asked(self._source.redis.get(self._source.keys.listed)))
        if not self._source.keys.tag and listed > self._cells:
            raise UsageError(
                f"{self._from} is one of {listed} cells that the deployment lists, as its workers have stored. Give "
                "the URLs of all of them, and of the same number of new places. If the deployment has fewer cells by "
                "now, restart its workers with their URLs."
            )

    async def _copy_until_short(self) -> None:
        seconds = before = 0.0
        for passes in range(MOST_PASSES):
            began = time.monotonic()
            copied = await self._pass()
            self._unchecked = set(self._foreign_jobs())  # the turns of some are copied next
            seconds = time.monotonic() - began
            self._say(f"{self._done.name}: copied {copied} of {self._done.keys} keys in {seconds:.1f} s.")
            if passes == 0:
                await self._remove_others()
            elif seconds <= self._pause / 2 and not SHORT_SECONDS < seconds < before / 2:
                return
            before = seconds
        raise StoreUnavailable(
            f"A pass over the keys takes {seconds:.1f} s, and writes may be paused for {self._pause:g} s only. "
            f"Nothing was switched: run the command again with --pause {seconds * 3:.0f}, or while less changes."
        )

    async def _switch(self) -> None:
        """Copy the rest while the source accepts no writes, and leave it. Raises ``StoreUnavailable``."""
        source, leave = (
            self._source,
            load_script("moving/leave", self._source.clock, self._source.keys.tag != ""),
        )
        redis: Any = source.redis
        await asked(redis.execute_command("SCRIPT LOAD", leave.source))
        began = time.monotonic()
        try:
            await asked(redis.execute_command("CLIENT PAUSE", round(self._pause * 1000), "WRITE"))
            frozen = await self._written()
            await self._pass()
            self._check_jobs()
            arguments = self._to, self._proof, *frozen, *guards(source.keys)
            pipe: Any = redis.pipeline(transaction=False)
            pipe.execute_command("CLIENT UNPAUSE")  # commands that wait run after all of these
            pipe.execute_command(
                "EVALSHA", leave.sha, *source.keys.declared, source.keys.prefix, source.database, *arguments
            )
            pipe.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
            pipe.execute_command("CLIENT KILL", "TYPE", "pubsub")
            _, answer, *_ = await asked(pipe.execute())
        except BaseException:
            await self._thaw()
            raise
        self._done.paused_seconds = round(time.monotonic() - began, 3)
        match answer:
            case [b"LEFT"]:
                return
            case [b"WRITTEN"]:
                raise StoreUnavailable(
                    f"The last pass took longer than writes may be paused ({self._pause:g} s), or the primary changed. "
                    "Nothing was switched: run the command again, with a longer --pause."
                )
            case [b"MOVED", place]:
                raise UsageError(f"The cell has moved in the meantime: {text_of(place)}.")
            case _:
                raise unexpected("moving/leave", answer)

    async def _thaw(self) -> None:
        try:
            await self._source.redis.client_unpause()
        except (RedisError, OSError):
            self._say(
                f"{self._from} cannot be reached; its writes continue after {self._pause:g} s by themselves."
            )

    async def _arrive(self) -> None:
        keys = self._target.keys
        shared = [one for name, key in shared_keys(keys).items() for one in (key, keys.arriving(name))]
        match await self._target.run("moving/arrive", self._marker, *shared):
            case [b"ARRIVED"]:
                return
            case _:
                raise self._superseded()

    async def _pass(self) -> int:
        """Copy or remove each key that changed since the last pass; return how many did."""
        changed = await self._changes.taken()
        if changed is None:
            await self._changes.begin()
            copied = await self._pass_over_all()
        else:
            copied = await self._pass_over([key for key in changed if moves(self._source.keys, key)])
        await self._copy_queues()
        self._done.keys, self._done.passes = len(self._copied), self._done.passes + 1
        return copied

    async def _pass_over_all(self) -> int:
        seen: set[bytes] = set()
        copied = 0
        async for keys in keys_of_cell(self._source):
            seen.update(map(self._place_of, keys))
            copied += await self._pass_over(keys)
        gone = [place for place in self._copied if place not in seen]
        await self._remove(gone)
        return copied + len(gone)

    async def _pass_over(self, keys: Sequence[bytes]) -> int:
        copied = 0
        for at in range(0, len(keys), BATCH):
            some = keys[at : at + BATCH]
            there = await self._found(some)
            changed = [one for one in there if self._copied.get(one.place) != one.mark]
            for portion in _portions(changed):
                await self._copy(portion)
                self._copied.update((one.place, one.mark) for one in portion)
            self._unchecked.update(one.place for one in changed)
            left = {self._place_of(key) for key in some} - {one.place for one in there}
            gone = [place for place in left if place in self._copied]
            await self._remove(gone)
            copied += len(changed) + len(gone)
        return copied

    async def _found(self, keys: Sequence[bytes]) -> list[Found]:
        """Return the keys that exist. The source can serve other clients after every few megabytes that it reads."""
        redis: Any = self._source.redis
        marks: list[tuple[bytes, int]] = []
        while left := keys[len(marks) :]:
            arguments = *self._source.keys.declared, BYTES_AT_ONCE, *left
            marks += await asked(redis.execute_command("EVAL_RO", MARKS, *arguments))
        return [
            Found(key, self._place_of(key), mark, size)
            for key, (mark, size) in zip(keys, marks, strict=True)
            if mark
        ]

    async def _copy(self, some: Sequence[Found]) -> None:
        pipe: Any = self._source.redis.pipeline(transaction=True)
        for one in some:
            pipe.pexpiretime(one.key)
            pipe.dump(one.key)
        found = await asked(pipe.execute())
        copies = zip(some, found[::2], found[1::2], strict=True)
        await self._restore(
            [value for one, at, dump in copies for value in (one.place, max(0, at), dump or b"")]
        )

    async def _copy_queues(self) -> None:
        """Copy the names of RQ's queues, which are keys themselves."""
        source, target = self._source.keys, self._target.keys
        found: Any = await asked(self._source.redis.smembers(source.of_rq("rq_queues")))
        draft = target.arriving("draft")
        pipe: Any = self._target.redis.pipeline(transaction=True)
        pipe.delete(draft)
        for name in found:
            pipe.sadd(draft, target.rq.encode() + name.removeprefix(source.rq.encode()))
        pipe.dump(draft)
        pipe.delete(draft)
        *_, dump, _ = await asked(pipe.execute())
        await self._restore([target.arriving(RQ_QUEUES), 0, dump or b""])

    async def _remove(self, places: Sequence[bytes]) -> None:
        for at in range(0, len(places), BATCH):
            await self._restore([value for place in places[at : at + BATCH] for value in (place, 0, b"")])
        for place in places:
            self._copied.pop(place, None)

    async def _restore(self, copies: Sequence[Any]) -> None:
        match await self._target.run("moving/restore", self._marker, *copies):
            case [b"RESTORED"]:
                return
            case _:
                raise self._superseded()

    def _superseded(self) -> UsageError:
        return UsageError(f"Another `antiphon cells move` has copied this cell to {self._to} since.")

    def _check_jobs(self) -> None:
        """Raise ``UsageError`` if other programs use RQ in this database: they would lose their jobs."""
        for place in self._foreign_jobs():
            job = place.removeprefix(self._target.keys.of_rq("rq_job", "").encode())
            raise UsageError(
                f"RQ's job {text_of(job)} is not a turn of this deployment, and all of RQ's keys would move with "
                "the cell: delete the job, or let its program use another database."
            )

    def _foreign_jobs(self) -> Iterator[bytes]:
        keys = self._target.keys
        jobs, turns = keys.of_rq("rq_job", "").encode(), keys.turn("").encode()
        for place in self._unchecked:
            job = place.removeprefix(jobs)
            if job != place and place in self._copied and turns + job not in self._copied:
                yield place

    async def _remove_others(self) -> None:
        """Remove the keys that an earlier mover copied and the source no longer has."""
        keys = self._target.keys
        known = {*guards(keys), keys.arriving(RQ_QUEUES)}
        async for found in keys_of_cell(self._target):
            await self._remove(
                [key for key in found if key not in self._copied and text_of(key) not in known]
            )

    async def _remove_source(self) -> None:
        """Remove the keys of the cell that has moved, except those that make its old place refuse writes."""
        left = set(guards(self._source.keys))
        async for found in keys_of_cell(self._source):
            if old := [key for key in found if text_of(key) not in left]:
                await asked(self._source.redis.unlink(*old))

    def _place_of(self, key: bytes) -> bytes:
        """Return where the copy of a key is. A shared key gets its own name when the cell has arrived."""
        source, target = self._source.keys, self._target.keys
        own = f"{source.prefix}:".encode()
        if not key.startswith(own):
            return target.rq.encode() + key.removeprefix(source.rq.encode())
        name = key.removeprefix(own)
        return f"{target.prefix}:{'arriving:' if text_of(name) in SHARED else ''}".encode() + name

    async def _written(self) -> tuple[str, int]:
        """Return the run id of the source, and its number of changes, which grows with each write."""
        server: dict[str, Any] = await asked(self._source.redis.info("server"))
        writes: dict[str, Any] = await asked(self._source.redis.info("persistence"))
        return str(server["run_id"]), int(writes["rdb_changes_since_last_save"])

    @staticmethod
    async def _marker_of(cell: Cell) -> str:
        return text_of(await asked(cell.redis.get(cell.keys.moved)))

    @staticmethod
    async def _has_keys(cell: Cell) -> bool:
        async for _ in keys_of_cell(cell):
            return True
        return False


def _portions(found: Sequence[Found]) -> Iterator[list[Found]]:
    """Divide keys into portions of at most `COPIED_AT_ONCE` keys and `BYTES_AT_ONCE`, or of one larger key."""
    portion: list[Found] = []
    size = 0
    for one in found:
        if portion and (len(portion) == COPIED_AT_ONCE or size + one.size > BYTES_AT_ONCE):
            yield portion
            portion, size = [], 0
        portion.append(one)
        size += one.size
    if portion:
        yield portion


async def keys_of_cell(cell: Cell) -> AsyncIterator[list[bytes]]:
    """Yield the keys of a cell that move with it, each at least once."""
    for stem in (cell.keys.prefix, cell.keys.rq):
        cursor = 0
        while True:
            answer: Any = await asked(cell.redis.scan(cursor, match=f"{stem}:*", count=BATCH))
            cursor = int(answer[0])
            if found := [key for key in set(answer[1]) if moves(cell.keys, key)]:
                yield found
            if not cursor:
                break


def moves(keys: Keys, key: bytes) -> bool:
    """Return whether a key of a cell moves with it. The keys of workers do not: workers register again."""
    workers = keys.of_rq("rq_worker", "").encode(), keys.of_rq("rq_workers").encode()
    return not key.startswith(workers) and text_of(key) not in left_out(keys)


@cache
def left_out(keys: Keys) -> frozenset[str]:
    return frozenset({*(keys.of(kind) for kind in NOT_COPIED), keys.of_rq("rq_queues")})


def shared_keys(keys: Keys) -> dict[str, str]:
    """Return the keys that all sessions of a cell share, by their names."""
    shared = {name: f"{keys.prefix}:{name}" for name in SHARED if name not in NOT_COPIED}
    return shared | {RQ_QUEUES: keys.of_rq("rq_queues")}


def guards(keys: Keys) -> list[str]:
    """Return the shared keys that no release can use if they contain a word."""
    return [key for name, key in shared_keys(keys).items() if SHARED.get(name) != "string"]
