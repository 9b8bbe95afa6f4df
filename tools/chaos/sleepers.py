"""Sessions that live in Redis for seconds, with an archive: they expire, are restored, and expire again."""

import asyncio
import random
from collections.abc import Callable

from support.ensemble import agent_spec

from antiphon.client import AsyncClient
from antiphon.errors import AgentError
from antiphon.stores import SessionStore

LIFE_SECONDS = 3.0
SESSIONS = 6
LOOK_SECONDS = 0.2


class Sleepers:
    """``trouble`` has a sentence for each saved session that was replaced by one with less content.

    If no worker looks before a session expires from Redis, its unsaved content is lost. What was saved stays.
    """

    def __init__(self, client: AsyncClient, archive: SessionStore, seed: int) -> None:
        self._client, self._archive, self._seed = client, archive, seed
        self._held: dict[str, list[str]] = {}
        self.trouble: list[str] = []
        self.saved = 0
        self.restored = 0

    async def sleep_and_wake(self, over: Callable[[], bool]) -> None:
        """Talk in all sessions, with pauses shorter and longer than their lifetime, and watch the archive."""
        watching = asyncio.create_task(self._watch())
        await asyncio.gather(*(self._talk(f"sleeper{number}", over) for number in range(SESSIONS)))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await self._look()

    async def _talk(self, session: str, over: Callable[[], bool]) -> None:
        chance, number = random.Random(f"{self._seed} {session}"), 0
        while not over():
            number += 1
            try:
                turn = await self._client.submit(
                    session,
                    f"{session} says {number} words:2",
                    key=f"{number}",
                    agent=agent_spec(),
                    ttl=LIFE_SECONDS,
                )
                await turn.result(20)
            except AgentError:  # Redis is away, or the turn takes longer: continue with the next one
                pass
            await asyncio.sleep(chance.choice((0.1, 1.0, 1.5, 2.5)) * LIFE_SECONDS)

    async def _watch(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        for session in await asyncio.to_thread(self._archive.list_sessions):
            saved = await asyncio.to_thread(self._archive.load, session)
            if saved is not None and "\x1f" not in session:  # not one that was replaced on purpose
                self._compare(session, [str(message) for message in saved["messages"]])

    def _compare(self, session: str, now: list[str]) -> None:
        before = self._held.get(session, [])
        if now[: len(before)] != before:
            self.trouble.append(
                f"{session}: its archived copy held {len(before)} messages, and now other {len(now)}"
            )
        if now != before:
            self.saved += 1
            self.restored += bool(before)
        self._held[session] = now
