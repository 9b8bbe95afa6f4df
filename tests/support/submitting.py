"""Clients that submit turns: many at once, or continuously, with checks afterwards."""

import asyncio
import contextlib
from itertools import count
from typing import Any, Self

from redis import Redis
from support.ensemble import Ensemble, agent_spec
from support.eventually import wait_until, wait_until_async

from antiphon.client import AsyncClient
from antiphon.input.request import AgentSpec

SESSIONS = 5
PER_SECOND = 40


async def submit_turns(url: str, prefix: str, number: int, agent: AgentSpec) -> None:
    """Submit turns in separate sessions, named ``PREFIX-0`` and so on."""
    async with AsyncClient(url) as client:
        for index in range(number):
            await client.submit(f"{prefix}-{index}", "Hello", agent=agent)


def wait_for_the_ends(url: str) -> None:
    """Return when all turns have ended; for use in a separate thread, whose calls do not count."""
    with Redis.from_url(url) as redis:
        wait_until(lambda: not redis.exists("ant:active"), 30, "all turns have ended", interval=0.02)


class Load:
    """Submits turns to a few sessions. ``accepted`` has their ids by key."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.accepted: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        await self.more()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def more(self, number: int = 20) -> None:
        """Return when ``number`` more turns are accepted."""
        wanted, task = len(self.accepted) + number, self._task
        assert task is not None

        def enough() -> bool:
            if task.done():
                task.result()
            return len(self.accepted) >= wanted

        await wait_until_async(enough, 60, f"{wanted} turns are accepted")

    async def whole(self, ensemble: Ensemble) -> None:
        """Fail unless each turn has run once, and a repeated submission returns it."""
        for number, turn_id in enumerate(self.accepted.values()):
            assert await (await self.client.turn(turn_id)).result(60)
            assert (await self._submit(number)).id == turn_id
        await ensemble.whole(*(f"load-{number}" for number in range(SESSIONS)))

    async def _run(self) -> None:
        for number in count():
            turn = await self._submit(number)
            self.accepted[f"k{number}"] = turn.id
            await asyncio.sleep(1 / PER_SECOND)

    async def _submit(self, number: int) -> Any:
        return await self.client.submit(
            f"load-{number % SESSIONS}", f"Hi {number}", key=f"k{number}", agent=agent_spec()
        )
