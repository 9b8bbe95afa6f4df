"""Users of Redis with the rights that docs/security.md gives them, and with fewer."""

import re

import pytest
from redis import Redis
from support.ensemble import agent_spec, open_ensemble
from support.source_tree import ROOT

from antiphon.client import AsyncClient
from antiphon.errors import StoreUnsupported, TurnCancelled
from antiphon.wire.connection.open import open_redis
from antiphon.wire.preflight import check_redis, read_redis

RULES = dict(
    re.findall(r"^ACL SETUSER (\w+) (reset .*)$", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
)


@pytest.fixture
def user(redis_url):
    """Make a user, and give the URL with which it connects."""
    made = []
    with Redis.from_url(redis_url) as redis:

        def make(name, *more):
            redis.execute_command("ACL", "SETUSER", name, *RULES[name].split(), *more)
            made.append(name)
            return redis_url.replace("://", f"://{name}:secret@")

        yield make
        redis.execute_command("ACL", "DELUSER", *made)


async def cancelled(turn):
    with pytest.raises(TurnCancelled, match="enough"):
        await turn.result(60)


async def test_the_rights_of_the_page_are_enough(user, redis_url, tmp_path, processes):
    """All that a client does, and a supervised worker, also a turn that is cancelled while it runs."""
    worker, client_url = user("worker"), user("client")
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        ensemble.supervisor(url=worker, lease=2).ready()
        async with AsyncClient(client_url) as client:
            turn = await client.submit("s", "hello tool:note", agent=agent_spec())
            events = [event.type async for event in turn.stream()]
            assert (events[0], events[-1]) == ("turn_queued", "turn_finished")
            assert (await turn.result(60)).text
            running = await client.submit("s", "go on gate:g", agent=agent_spec())
            waiting = await client.submit("s", "and on", agent=agent_spec())
            delayed = await client.submit("s", "later", agent=agent_spec(), delay=3600)
            await ensemble.waits("g")
            assert await running.cancel("enough") == "requested"
            for one in (waiting, delayed):
                assert await one.cancel("enough") == "cancelled"
            for one in (running, waiting, delayed):
                await cancelled(one)
            session = client.session("s")
            await session.clear_async()
            assert await (await session.fork_async("f")).delete_async()
            assert [one.session_id async for one in client.sessions()] == ["s"]
            assert await session.delete_async()


async def test_a_turn_is_accepted_whole_where_its_events_may_not_be_published(user, redis_url, tmp_path):
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker():
        async with AsyncClient(user("client", "resetchannels")) as client:
            turn = await client.submit("s", "hello", agent=agent_spec())
        found = await ensemble.client.turn(turn.id)
        assert (await found.result(60)).text
        await ensemble.whole("s")


async def test_a_worker_that_may_not_publish_events_does_not_start(user):
    redis = open_redis(user("worker", "resetchannels", "&ant:control:*"), retries=0)
    try:
        facts = await read_redis(redis)
    finally:
        await redis.aclose()
    with pytest.raises(StoreUnsupported, match="ACL SETUSER <user> \\+publish"):
        check_redis(facts, "none")
