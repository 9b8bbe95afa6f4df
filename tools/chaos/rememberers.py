"""Sessions with a memory: turns run, and sessions are deleted or cleared, while the store and the workers fail."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from antiphon.agent import Agent
from antiphon.client import AsyncClient
from antiphon.errors import AgentError
from antiphon.memory import FactModel, FaissStore, Memory, WordEmbeddings
from antiphon.testing import script
from antiphon.wire.lists.memories import Remembered, read_facts, waiting_sessions, which_known
from antiphon_worker.memory.documents import Documents
from antiphon_worker.memory.facts import Distiller
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.scripted import ScriptedProvider

AGENT, TENANT = "keeper", "remembered"
AWAY = "store is away"
SESSIONS = 8
INDEX_LEASE_SECONDS = 6.0
"""Longer than workers are stopped. A worker killed while it indexes holds a session for this long."""
CURSORS = ("memory", "+memory")


class FallibleStore(FaissStore):
    """A store that is away while the file ``away`` exists."""

    def __init__(self, folder: Path, away: Path) -> None:
        super().__init__(folder, WordEmbeddings(64))
        self._away = away

    def add_texts(self, *args: Any, **options: Any) -> list[str]:
        self._reach()
        return super().add_texts(*args, **options)

    def delete(self, *args: Any, **options: Any) -> Any:
        self._reach()
        return super().delete(*args, **options)

    def _reach(self) -> None:
        if self._away.exists():
            raise ConnectionError(AWAY)


def notetaker() -> ScriptedProvider:
    """Return a model that extracts one fact from each turn: what its user said."""

    def facts(request: ModelRequest) -> dict[str, Any]:
        turns = request.messages[0].text.split("\n\nTurn ")[1:]
        said = [turn.partition("User: ")[2].partition("\n")[0] for turn in turns]
        found = [{"id": "", "text": text, "turn": number} for number, text in enumerate(said, 1)]
        return {"facts": found, "forgotten": []}

    return ScriptedProvider(script(facts, repeat=True), name="notetaker")


def memory_in(folder: Path) -> Memory:
    """Return the memory of a run. It has as many facts as turns."""
    store = FallibleStore(folder / "memory", folder / AWAY)
    return Memory(store, scope="tenant", facts=FactModel("notetaker", "any", most=1000))


def agents_with_memory(folder: Path) -> list[Agent]:
    """Return the agent of these sessions, in a worker process, and shorten the indexing leases for the run."""
    Documents.lease_seconds = Distiller.lease_seconds = INDEX_LEASE_SECONDS
    return [Agent(provider="stage", model="stage-1", name=AGENT, memory=memory_in(folder))]


class Rememberers:
    """``indexed`` turns are in the index; they are compared with the finished turns in sessions that still exist."""

    def __init__(self, client: AsyncClient, folder: Path, seed: int) -> None:
        self._client = client
        self._memory = memory_in(folder)
        self._seed = seed
        self.trouble: list[str] = []
        self.indexed = self.facts = self.deleted = self.left = 0

    async def remember(self, over: Callable[[], bool]) -> None:
        """Talk in all sessions; now and then delete one, or clear its history."""
        await asyncio.gather(*(self._talk(f"m{number}", over) for number in range(SESSIONS)))

    async def _talk(self, session: str, over: Callable[[], bool]) -> None:
        chance, number = random.Random(f"{self._seed} {session}"), 0
        while not over():
            number += 1
            with suppress(AgentError):  # Redis is away, or the turn takes longer
                turn = await self._client.submit(
                    session, f"{session} says {number} words:2", key=f"{number}", agent=AGENT, tenant=TENANT
                )
                if chance.random() < 0.7:
                    await turn.result(20)
            with suppress(AgentError):
                match chance.choices(("on", "delete", "clear"), (16, 1, 1))[0]:
                    case "delete":
                        async with asyncio.timeout(20):
                            await self._client.session(session).delete()
                            self.deleted += 1
                    case "clear":
                        await self._client.session(session).clear(if_busy="reject")
                    case _:
                        pass
            await asyncio.sleep(chance.uniform(0, 0.4))

    async def all_indexed(self, client: AsyncClient) -> bool:
        """Return whether nothing waits to be indexed, extracted or forgotten."""
        try:
            waiting = [await waiting_sessions(_cell(client), cursor) for cursor in CURSORS]
        except AgentError:
            return False
        return not any(waiting)

    async def check(self, client: AsyncClient) -> None:
        """Compare the index and the facts with the histories: each finished turn once, and nothing else."""
        finished: set[tuple[str, str]] = set()
        for number in range(SESSIONS):
            messages = await client.session(f"m{number}").messages()
            finished |= {(f"m{number}", one.turn_id or "") for one in messages if one.role == "assistant"}
        with self._memory.store._open() as database:
            rows = database.execute("SELECT metadata FROM documents WHERE text IS NOT NULL").fetchall()
        places = [_place(row[0]) for row in rows]
        more = [place for place in places if place not in finished]
        known = await which_known(_cell(client), "memory", [Remembered(*place) for place in more])
        recalled = [place for place, is_known in zip(more, known, strict=True) if is_known]
        self.left = len(more) - len(recalled)  # of workers that died after a late write: see G17
        self._compare("the index", finished, [place for place in places if place in finished] + recalled)
        self.indexed = len(places) - self.left
        facts = [fact async for fact in client.memory(tenant=TENANT)]
        self._compare("the facts", finished, [source for fact in facts for source in fact.sources])
        self.facts = len(facts)
        scope = self._memory.scope_key("ant", TENANT, AGENT, "", name="memory")
        kept = (await read_facts(_cell(client), scope)).facts
        if len(kept) != len(facts):
            self.trouble.append(f"Redis keeps {len(kept) - len(facts)} facts that are not shown")

    def _compare(self, what: str, finished: set[tuple[str, str]], found: Sequence[tuple[str, str]]) -> None:
        times = Counter(found)
        missing, more = finished - times.keys(), times.keys() - finished
        doubled = [place for place, count in times.items() if count > 1]
        if missing:
            self.trouble.append(f"{what} lacks {len(missing)} finished turns: {sorted(missing)[:3]}")
        if more:
            self.trouble.append(f"{what} has {len(more)} turns that are gone: {sorted(more)[:3]}")
        if doubled:
            self.trouble.append(f"{what} has {len(doubled)} turns twice: {sorted(doubled)[:3]}")


def _cell(client: AsyncClient) -> Any:
    return client.connections.cell_of_session("m0")  # type: ignore[arg-type]


def _place(metadata: str) -> tuple[str, str]:
    about = json.loads(metadata)
    return about["session_id"], about["turn_id"]
