"""The clock of Redis jumps: no turn whose worker lives is taken for one whose worker died."""

import asyncio
import time

import pytest
from support.cells import LEASE_MS, open_cell
from support.eventually import wait_until_async

from antiphon_worker.process.reaper import Reaper
from antiphon_worker.settings import Settings

pytestmark = pytest.mark.one_server


class Clock:
    """The server's clock as this test moves it; the scripts have the test's clock already."""

    def __init__(self, cell):
        self._cell = cell
        self._began = time.monotonic()

    async def server_ms(self):
        passed = (time.monotonic() - self._began) * 1000
        return int(passed) + await self._cell.now()


@pytest.mark.parametrize("jump_ms", [3_600_000, 60_000])
async def test_a_clock_that_is_put_forward_makes_no_crash_of_a_turn_that_is_renewed(
    redis_url, monkeypatch, caplog, jump_ms
):
    monkeypatch.setattr(Reaper, "pause_seconds", 0.01)
    async with open_cell(redis_url) as cell:
        monkeypatch.setattr(cell, "server_ms", Clock(cell).server_ms)
        looks = []
        reap = cell.reap

        async def counted(**options):
            looks.append(await reap(**options))
            return looks[-1]

        monkeypatch.setattr(cell, "reap", counted)
        turn = await cell.started("t1")
        running = asyncio.create_task(Reaper(cell, Settings(lease=1.0)).run())
        await wait_until_async(lambda: len(looks) > 2)
        await cell.wait(jump_ms)
        await wait_until_async(lambda: "put forward" in caplog.text)
        await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS)
        seen = len(looks)
        await wait_until_async(lambda: len(looks) > seen + 2)
        running.cancel()
        assert looks[seen:] == [[]] * len(looks[seen:])
        assert await cell.status() == "running"
        assert (await cell.redis.hget("ant:turn:t1", "crashes")) == b"0"
        assert await cell.end(turn)
