"""What a client's end does to those who still use it; and what a fork or another event loop does to a client."""

import asyncio
import gc
import os
import threading
import traceback

import pytest
from redis import Redis
from support.eventually import patience, wait_until, wait_until_async

from antiphon import AsyncClient, Client
from antiphon.errors import ClientClosed, StoreUnavailable, UsageError

pytestmark = pytest.mark.one_server


def listens(url, session="s"):
    """Whether anybody listens to the session's live channel."""
    with Redis.from_url(url) as redis:
        return dict(redis.pubsub_numsub(f"ant:live:0:{session}"))[f"ant:live:0:{session}".encode()] == 1


def outcome_of(work):
    """Run it in a thread; the list gets how it ended."""
    ended = []

    def run():
        try:
            ended.append(work())
        except BaseException as exc:  # noqa: BLE001 - it is what the test looks at
            ended.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def in_a_fork(work):
    """The exit code of a child that does the work."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not go on with the tests
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


READERS = {
    "subscribe": lambda client: list(client.subscribe("s", after=0)),
    "result": lambda client: client.submit("s", "x", queue="nowhere").result(),
    "stream": lambda client: list(client.submit("s", "x", queue="nowhere").stream()),
    "as_completed": lambda client: list(client.as_completed([client.submit("s", "x", queue="nowhere")])),
}


@pytest.mark.parametrize("read", READERS)
def test_readers_of_a_client_that_is_closed_are_told(read, redis_url):
    client = Client(redis_url)
    thread, ended = outcome_of(lambda: READERS[read](client))
    channel = "" if read == "as_completed" else "s"  # that of all sessions
    wait_until(lambda: listens(redis_url, channel), description="the reader listens")
    client.close()
    thread.join(10)
    assert [type(one) for one in ended] == [ClientClosed]
    for turn in (other := Client(redis_url)).turns("s"):
        turn.cancel()
    other.close()


async def test_readers_of_an_asynchronous_client_that_is_closed_are_told(redis_url):
    client, seen = AsyncClient(redis_url), []
    turn = await client.submit("s", "x", queue="nowhere")
    await turn.cancel()

    async def read():
        async for event in client.subscribe("s", after=0):
            seen.append(event)  # noqa: PERF401 - seen as they come

    reader = asyncio.create_task(read())
    await wait_until_async(lambda: len(seen) == 2, description="the reader listens")
    await client.aclose()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(reader, patience(60))


async def test_a_subscription_that_waits_for_redis_ends_with_its_client():
    """It waits for a Redis that is away; a closed client must not connect again."""
    client = AsyncClient("redis://localhost:1/0")

    async def read():
        return [event async for event in client.subscribe("s", after=0)]

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    await client.aclose()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(reader, patience(60))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_turn_is_followed_in_the_child_of_a_fork(workers_runtime):
    with Client(workers_runtime.url) as client:
        turns = [
            client.submit("s", "x", agent=workers_runtime.agent()),
            workers_runtime.agent().session("s").submit("x"),
        ]
        for turn in turns:
            turn.result(60)

        def child():
            for turn in turns:
                assert turn.status() == "finished"
                assert turn.result(60).text == "You said: x"
                assert list(turn.stream())[-1].type == "turn_finished"

        assert in_a_fork(child) == 0
        assert [turn.result(60).text for turn in turns] == ["You said: x"] * 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_takes_nothing_from_the_connections_of_its_parent(redis_url):
    with Client(redis_url) as client:
        client.submit("s", "1", queue="nowhere")
        events = client.subscribe("s", after=0)
        next(events)

        def child():
            client.submit("s", "2")
            client.close()
            gc.collect()

        assert in_a_fork(child) == 0
        assert next(events).type == "turn_queued"
        feed = next(iter(client._async.connections._feeds.values()))
        heard = feed._heard_at
        last = client.submit("s", "3")
        assert next(events).turn_id == last.id
        wait_until(lambda: feed._heard_at > heard, 4, "it came over the connection that was there")
        for turn in client.turns("s"):
            turn.cancel()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_leaving_a_client_in_the_child_of_a_fork_leaves_that_of_the_parent(workers_runtime):
    with Client(workers_runtime.url) as client:
        client.submit("s", "x", agent=workers_runtime.agent()).result(60)

        def child():
            client.close()
            with pytest.raises(ClientClosed):
                client.snapshot("s")

        assert in_a_fork(child) == 0
        assert client.submit("s", "y").result(60).text == "You said: y"


def test_an_asynchronous_client_on_a_second_event_loop_is_told_so():
    client = AsyncClient("redis://localhost:1/0")

    async def use():
        with pytest.raises(StoreUnavailable):
            await client.snapshot("s")

    async def use_again():
        with pytest.raises(UsageError, match=r"for each asyncio\.run"):
            await client.snapshot("s")

    asyncio.run(use())
    asyncio.run(use_again())
    asyncio.run(client.aclose())
