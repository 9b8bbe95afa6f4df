"""A process that is late already leaves new turns to the others."""

import asyncio

import pytest
from support.ensemble import agent_spec
from support.eventually import wait_until_async

from antiphon.client import AsyncClient
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon_worker.process import consumer as consumer_module
from antiphon_worker.process.consumer import Consumer
from antiphon_worker.process.lease import LeaseKeeper
from antiphon_worker.settings import Settings

pytestmark = pytest.mark.one_server


class Hands:
    """A consumer whose turns never end, and which is late when the test says so."""

    def __init__(self, url, name):
        self.cell = Cell(open_redis(url))
        self.taken = []
        self.late = False
        self.told = False
        keeper = LeaseKeeper(lambda: Cell(open_redis(url)), name, 60)
        self.consumer = Consumer(
            self.cell, keeper, Settings(lease=60), name, run_turn=self.hold, run_foreign=None, run_alone=None,
            late=self.is_late,
        )  # fmt: skip

    def is_late(self):
        self.told = self.late
        return self.late

    async def hold(self, turn, lease):
        self.taken.append(turn.session_id)
        await asyncio.Event().wait()

    async def __aenter__(self):
        self.task = asyncio.create_task(self.consumer.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.consumer.abandon()
        await self.cell.redis.aclose()


@pytest.mark.lasting_keys("*")
async def test_a_late_process_takes_nothing_and_another_one_does(redis_url, monkeypatch):
    monkeypatch.setattr(consumer_module, "CALM_SECONDS", 60)
    async with AsyncClient(redis_url) as client, Hands(redis_url, "tired") as tired:
        await client.submit("one", "hi", agent=agent_spec())
        await wait_until_async(lambda: tired.taken == ["one"], 10, "it takes a turn")
        tired.late = True
        await wait_until_async(lambda: tired.told, 10, "it knows that it is late")
        many = [f"many-{n}" for n in range(9)]
        for session in many:
            await client.submit(session, "hi", agent=agent_spec())
        async with Hands(redis_url, "fresh") as fresh:
            await wait_until_async(lambda: len(fresh.taken) == len(many), 10, "another one takes them")
            assert sorted(fresh.taken) == many
            assert tired.taken == ["one"]


@pytest.mark.lasting_keys("*")
async def test_a_process_that_stays_late_still_takes_a_turn_now_and_then(redis_url, monkeypatch):
    monkeypatch.setattr(consumer_module, "CALM_SECONDS", 0.2)
    async with AsyncClient(redis_url) as client, Hands(redis_url, "tired") as tired:
        tired.late = True
        for n in range(4):
            await client.submit(f"s{n}", "hi", agent=agent_spec())
        await wait_until_async(lambda: len(tired.taken) == 4, 20, "nothing is left")
