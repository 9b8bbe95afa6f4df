"""Sessions whose files are in a byte store: added, torn, read, removed and deleted while everything breaks."""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from antiphon.bytestores import FolderStore, use_byte_store
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, CorruptRecord, NotFound
from antiphon.input.ids import SessionId
from antiphon.text import text_of
from antiphon.wire.placed import name_of, places_of, sweep

SESSIONS = 4
MOST_BYTES = 20_000
LONGEST_TEAR_SECONDS = 0.02  # after which the caller dies
TORN_SHARE = 0.3
PAUSE_SECONDS = 0.1


class Filers:
    """``kept`` has the files of each session by id. ``trouble`` has a sentence for each file that differs from what
    was stored, and for content without a file."""

    def __init__(self, client: AsyncClient, folder: Path, seed: int) -> None:
        self._client, self._seed = client, seed
        self.store = FolderStore(folder)
        self.kept: dict[str, dict[str, bytes]] = {}
        self.counts: Counter[str] = Counter()
        self.trouble: list[str] = []

    async def run(self, over: Callable[[], bool]) -> None:
        """Add, read and remove files in all sessions."""
        use_byte_store(self.store)
        try:
            await asyncio.gather(*(self._file(f"files{number}", over) for number in range(SESSIONS)))
        finally:
            use_byte_store(None)

    async def _file(self, session: str, over: Callable[[], bool]) -> None:
        chance = random.Random(f"{self._seed} {session}")
        acts = (self._add, self._tear, self._read, self._remove, self._delete)
        while not over():
            act = chance.choices(acts, (6, 3, 4, 2, 1))[0]
            await act(session, chance)
            await asyncio.sleep(chance.random() * PAUSE_SECONDS)

    async def _add(self, session: str, chance: random.Random) -> None:
        data = chance.randbytes(chance.randrange(1, MOST_BYTES))
        await self._surely(lambda: self._client.session(session).add_file(data), chance)
        self.kept.setdefault(session, {})[hashlib.sha256(data).hexdigest()] = data
        self.counts["added"] += 1

    async def _tear(self, session: str, chance: random.Random) -> None:
        """Add a file, and die before it is known whether it was stored."""
        data = chance.randbytes(chance.randrange(1, MOST_BYTES))
        await self._torn(lambda: self._client.session(session).add_file(data), chance)

    async def _read(self, session: str, chance: random.Random) -> None:
        kept = self.kept.get(session, {})
        if kept:
            with suppress(AgentError):  # Redis is away; the check finds what is lost for good
                await self._compare(session, chance.choice([*kept]))

    async def _compare(self, session: str, file: str) -> None:
        found = await self._client.session(session).read_file(file)
        self.counts["read"] += 1
        if found.data != self.kept[session][file]:
            self.trouble.append(f"{session}: the file {file[:8]} is not what was stored")

    async def _remove(self, session: str, chance: random.Random) -> None:
        kept = self.kept.get(session, {})
        if kept:
            file = chance.choice([*kept])
            del kept[file]
            await self._surely(lambda: self._client.session(session).remove_file(file), chance)
            self.counts["removed"] += 1

    async def _delete(self, session: str, chance: random.Random) -> None:
        self.kept.pop(session, None)
        await self._surely(self._client.session(session).delete, chance)
        self.counts["deleted"] += 1

    async def _torn(self, call: Callable[[], Awaitable[object]], chance: random.Random) -> None:
        """Begin a call, and die during it."""
        with suppress(TimeoutError, AgentError):
            async with asyncio.timeout(chance.random() * LONGEST_TEAR_SECONDS):
                await call()
        self.counts["torn"] += 1

    async def _surely(self, call: Callable[[], Awaitable[object]], chance: random.Random) -> None:
        """Repeat a call until it is answered, sometimes after a caller that died during it."""
        if chance.random() < TORN_SHARE:
            await self._torn(call, chance)
        while True:
            try:
                await call()
                return
            except AgentError:
                await asyncio.sleep(PAUSE_SECONDS)

    async def check(self, client: AsyncClient) -> None:
        """Read every file, sweep as a worker does, and compare the contents of the store and Redis."""
        self._client = client
        use_byte_store(self.store)
        try:
            for session, kept in self.kept.items():
                for file in kept:
                    try:
                        await self._compare(session, file)
                    except (NotFound, CorruptRecord) as exc:
                        self.trouble.append(f"{session}: the file {file[:8]} is lost: {exc}")
            sessions = [SessionId(f"files{number}") for number in range(SESSIONS)]
            for session in sessions:
                cell = client.connections.cell_of_session(session)
                self.counts["swept"] += await sweep(cell)
                known = {name_of(one, place) for one in sessions for place in await places_of(cell, one)}
                root = text_of(await cell.redis.get(cell.keys.byte_root))
                garbage = {*self.store.names(f"{root}/")} - known if root else ()
                if garbage:
                    self.trouble.append(f"{len(garbage)} contents of the byte store belong to no file")
        finally:
            use_byte_store(None)
