"""When a reaper waits before it declares holders dead."""

import asyncio
import time

import pytest
from support.eventually import wait_until_async

from antiphon.errors import StoreUnsupported
from antiphon.wire.records import Reaped
from antiphon_worker.process import reaper as module
from antiphon_worker.process.reaper import Reaper
from antiphon_worker.settings import Settings


class Looked:
    """A cell with one session of another holder: counts how often the holder was judged or spared; a clock to move."""

    def __init__(self, monkeypatch, *, up=1000.0):
        self.reaped = 0
        self.spared = 0
        self.ahead = 0.0
        self.redis = None

        async def seconds_up(_):
            return up

        monkeypatch.setattr(module, "seconds_up", seconds_up)
        monkeypatch.setattr(Reaper, "pause_seconds", 0.01)

    async def server_ms(self):
        return (time.monotonic() + self.ahead) * 1000

    async def busy_sessions(self):
        return 1

    async def reap(self, *, spare, **_):
        self.spared += spare
        self.reaped += not spare
        return []


async def stopped(task):
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(("up", "waits"), [(0.0, True), (4.0, True), (11.0, False)])
async def test_a_redis_that_has_just_started_leaves_the_holders_of_before_a_lease_to_renew(
    up, waits, monkeypatch
):
    cell = Looked(monkeypatch, up=up)
    reaper = Reaper(cell, Settings(lease=10))
    assert await reaper._quiet_seconds() == 10 - up
    task = asyncio.create_task(reaper.run())
    await wait_until_async(lambda: reaper._ahead_ms is not None)
    assert (reaper._quiet_until > time.monotonic()) == waits
    await wait_until_async(lambda: cell.spared or cell.reaped)
    assert (bool(cell.spared), bool(cell.reaped)) == (waits, not waits)
    await stopped(task)


@pytest.mark.parametrize(("jump", "waits"), [(3600, True), (-600, False), (0.05, False)])
async def test_a_clock_that_goes_forward_makes_nobody_dead(jump, waits, monkeypatch, caplog):
    cell = Looked(monkeypatch)
    reaper = Reaper(cell, Settings(lease=10))
    task = asyncio.create_task(reaper.run())
    await wait_until_async(lambda: cell.reaped)
    cell.ahead += jump
    await wait_until_async(lambda: abs((reaper._ahead_ms or 0.0) / 1000 - jump) < 0.04)
    before = cell.reaped
    assert (reaper._quiet_until > time.monotonic()) == waits
    await wait_until_async(lambda: cell.spared if waits else cell.reaped > before)
    assert ("put forward" in caplog.text) == waits
    await stopped(task)


async def test_while_many_are_due_it_does_not_pause(monkeypatch):
    cell = Looked(monkeypatch)

    async def many(**_):
        cell.reaped += 1
        reaper.pause_seconds = 3600.0  # of this one only: there are workers of other tests in this process
        return [Reaped("s", "t", "resumed")] * (module.AT_ONCE if cell.reaped < 3 else 1)

    cell.reap = many
    reaper = Reaper(cell, Settings(lease=10))
    task = asyncio.create_task(reaper.run())
    await wait_until_async(lambda: cell.reaped == 3)
    await stopped(task)


async def test_an_error_that_no_repetition_mends_ends_it(monkeypatch):
    cell = Looked(monkeypatch)

    async def refused(**_):
        raise StoreUnsupported("Redis may not do that.")

    cell.reap = refused
    with pytest.raises(StoreUnsupported):
        async with asyncio.timeout(20):
            await Reaper(cell, Settings(lease=10)).run()
