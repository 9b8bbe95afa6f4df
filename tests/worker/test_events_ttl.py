"""The events of an idle session are kept for an hour, or as long as its App says. Nobody who comes later is lost."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest
from support.here import running_worker
from support.revisions import client_of

from antiphon import Agent
from antiphon.cli.main import main
from antiphon.errors import SettingsError
from antiphon.testing import script
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


def app_of(**options) -> App:
    return App(agents=[Agent(script("Yes.", repeat=True), "any", name="support")], **options)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 3600),
        ({"events_ttl": timedelta(days=7)}, 7 * 86400),
        ({"events_ttl": 90.5}, 91),
        ({"events_ttl": None}, 30 * 86400),
    ],
)
async def test_the_app_says_how_long_events_are_kept(redis_url, options, seconds):
    async with client_of(redis_url) as client, running_worker(redis_url, app_of(**options)):
        await (await client.submit("s", "Hello", agent="support")).ended()
        (cell,) = client.connections.cells
        assert seconds - 20 < await cell.redis.ttl(cell.keys.events("s")) <= seconds


@pytest.mark.parametrize("given", [59, 0, -1, "1h", True, timedelta(seconds=1)])
def test_a_time_in_which_no_reader_could_return_is_refused(given):
    with pytest.raises(SettingsError, match="events_ttl= must be"):
        App(events_ttl=given)


async def test_readers_that_come_after_the_events_get_what_they_brought(redis_url, capsys):
    async with client_of(redis_url) as client, running_worker(redis_url, app_of()):
        turn = await client.submit("s", "Hello", agent="support")
        end = [event async for event in turn.stream()][-1]
        (cell,) = client.connections.cells
        await cell.redis.delete(cell.keys.events("s"))  # as after its hour
        (left,) = [event async for event in turn.stream()]
        assert (left.type, left.seq, left.response.text) == ("turn_finished", end.seq, "Yes.")
        async with aclosing(client.subscribe("s", after=0)) as events:
            brought = await anext(events)
            await client.submit("s", "Again", agent="support")
            follows = await anext(events)
        assert [message.text for message in brought.messages] == ["Hello", "Yes."]
        assert (brought.type, brought.seq) == ("message", end.seq)
        assert (follows.type, follows.seq) == ("turn_queued", end.seq + 1)
    assert await asyncio.to_thread(main, ["explain", turn.id, "--redis-url", redis_url]) == 0
    assert turn.id in capsys.readouterr().out
