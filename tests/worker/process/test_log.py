"""What an operator reads in a worker's log: each change of state by its word, and why turns fail."""

import logging
from contextlib import asynccontextmanager

import pytest
from support.ensemble import open_ensemble
from support.eventually import wait_until, wait_until_async

from antiphon import Client
from antiphon.errors import ProviderUnauthorized
from antiphon.input.request import AgentSpec

pytestmark = pytest.mark.one_server


@pytest.fixture
def working(redis_url, tmp_path, caplog):
    """A worker on this loop, its stage and a client; the log is kept."""
    caplog.set_level(logging.INFO, "antiphon")

    @asynccontextmanager
    async def start(**settings):
        async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker(**settings):
            yield ensemble

    return start


async def line(caplog, action):
    """The first record with this action, once there is one."""

    def found():
        return [record for record in caplog.records if getattr(record, "action", None) == action]

    return (await wait_until_async(found, 10, f"the log has {action}"))[0]


async def test_a_turn_that_finished_is_called_so(working, caplog):
    async with working() as ensemble:
        turn = await ensemble.submit("s", "hello")
        await turn.result(10)
        record = await line(caplog, "turn_finished")
        assert record.levelname == "INFO"
        assert record.getMessage().startswith(f"turn {turn.id} of session s: finished after ")


async def test_a_turn_that_failed_says_why_and_is_a_warning(working, caplog):
    async with working() as ensemble:
        turn = await ensemble.submit("s", "no fail:unauthorized")
        with pytest.raises(ProviderUnauthorized):
            await turn.result(10)
        record = await line(caplog, "turn_failed")
        assert record.levelname == "WARNING"
        assert "provider_unauthorized: " in record.getMessage()
        assert "does not accept the key" in record.getMessage()


async def test_a_turn_that_is_tried_again_says_why_and_when(working, caplog):
    async with working(retry_delay=0.02) as ensemble:
        turn = await ensemble.submit("s", "once fail:broken*1")
        await turn.result(10)
        record = await line(caplog, "turn_retrying")
        assert record.levelname == "WARNING"
        assert "retrying after" in record.getMessage()
        assert "again in 0.0 s: provider_stream_broken: " in record.getMessage()


async def test_a_delayed_turn_that_is_due_is_no_warning(working, caplog):
    async with working() as ensemble:
        await (await ensemble.submit("s", "later", delay=0.1)).result(10)
        record = await line(caplog, "reaped_due")
        assert (record.levelname, "its delay is over" in record.getMessage()) == ("INFO", True)


def test_every_line_of_a_worker_process_shows_its_action(redis_url, processes):
    worker = processes.worker(redis_url)
    worker.wait_for_output("takes turns")
    with Client(redis_url) as client:
        turn = client.submit("s", "hello", agent=AgentSpec(provider="scripted", model="any"))
        turn.result(timeout=10)
    wait_until(lambda: f"INFO    [turn_finished] turn {turn.id}" in worker.output, 10, "the line of the turn")
    assert "[started] worker" in worker.output
