"""A worker of the release before this one leaves a turn that waits for a batch to the workers of this release."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from support.batched import PRICES, SOON, adding, service
from support.ensemble import open_ensemble
from support.eventually import wait_until_async
from support.here import running_worker
from support.releases import PREVIOUS, prepare
from support.services.batch_server import BatchServer

from antiphon import Agent
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr("antiphon_worker.batches.IDLE_SECONDS", 0.05)


@asynccontextmanager
async def newer_worker(redis_url, server, **settings):
    providers = {"openai": service("openai", server.url)}
    app = App([Agent("openai", "m", name="a")], providers=providers, prices=PRICES)
    async with running_worker(redis_url, app, **{**SOON, **settings}):
        yield


@pytest.mark.parametrize("late", [False, True])
async def test_an_older_worker_leaves_a_turn_that_waits_for_a_batch_to_newer_ones(
    redis_url, tmp_path, processes, late
):
    if reason := prepare():
        pytest.skip(reason)
    async with (
        open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble,
        BatchServer(adding("openai"), quick=False) as server,
    ):
        client, deadline = ensemble.client, 1.0 if late else 3600.0
        async with newer_worker(redis_url, server, batch_deadline=deadline):
            turn = await client.submit("s", "Hello", agent="a", service="batch")
            await wait_until_async(lambda: server.orders)
        older = ensemble.supervisor(release=PREVIOUS)
        await asyncio.to_thread(older.ready, 1)
        other = await client.submit("other", "hello", agent=Agent("stage", "stage-1"))
        assert "I was shown" in (await other.result(30)).text
        if late:
            await wait_until_async(lambda: goes_on(turn), 30)
        assert (await turn.status() == "suspended") is not late
        async with newer_worker(redis_url, server, batch_deadline=deadline):
            server.finish()
            assert (await turn.result(60)).text == "Hello."
        assert (len(server.orders), len(server.usual)) == (1, 1 if late else 0)


async def goes_on(turn):
    return await turn.status() != "suspended"
