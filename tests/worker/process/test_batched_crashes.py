"""Workers that die while turns are answered in batches: each step is asked for once, and answered once (G27)."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from support.batched import SOON, lose, service, working
from support.eventually import patience, wait_until_async
from support.services.batch_server import Refused

from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon_worker import batches
from antiphon_worker.batches import Batcher
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses
from antiphon_worker.settings import Settings

pytestmark = pytest.mark.one_server


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr("antiphon_worker.batches.IDLE_SECONDS", 0.05)


class Idle:
    """Takes the place of the workers' batcher: the test runs its own, and stops it wherever it likes."""

    def __init__(self, *_):
        pass

    async def run(self):
        await asyncio.Event().wait()


class Stopped(Exception):
    """The process has died here."""


@asynccontextmanager
async def own_cell(redis_url):
    cell = Cell(open_redis(redis_url))
    yield cell
    await cell.redis.aclose()


@asynccontextmanager
async def dying(redis_url, kind, monkeypatch, turns=2):
    """Turns that wait for batches, and a function that works on these until everything is done or the process dies."""
    monkeypatch.setattr("antiphon_worker.process.worker.Batcher", Idle)
    async with (
        working(redis_url, kind, batch_seconds=0.2, batch_size=turns) as (client, server),
        own_cell(redis_url) as cell,
    ):
        provider = service(kind, server.url)

        async def opened(name):
            return provider

        async def work():
            batcher = Batcher(cell, [kind], opened, Settings(redis_url=redis_url, **SOON))
            for label in await cell.redis.zrange(cell.keys.batches, 0, -1):
                await cell.redis.zadd(cell.keys.batches, {label: 0})  # the lease of the dead worker is over
            with suppress(Stopped):
                await batcher._take_all()

        submitted = [await client.submit(f"s{n}", "Hello", agent="a", service="batch") for n in range(turns)]
        await wait_until_async(lambda: all_wait(cell, turns))
        yield work, server, submitted, cell
        await provider.aclose()


async def all_wait(cell, turns):
    outbox = [key async for key in cell.redis.scan_iter(match=f"{cell.keys.prefix}:batch_outbox:*")]
    statuses = [key async for key in cell.redis.scan_iter(match=f"{cell.keys.prefix}:turn:*")]
    found = [await cell.redis.hget(key, "status") for key in statuses]
    return len(outbox) == 1 and found.count(b"suspended") == turns


async def work_on(work):
    while True:
        await work()


async def hang(reached):
    reached.set()
    await asyncio.Event().wait()


PLACES = {
    "openai": ["before POST /v1/files", "after POST /v1/files", "before POST /v1/batches", "after POST /v1/batches",
               "before GET /v1/batches/*", "after GET /v1/batches/*", "before GET /v1/files/*/content",
               "after GET /v1/files/*/content", "before DELETE /v1/files/*", "after DELETE /v1/files/*"],
    "anthropic": ["before POST /v1/messages/batches", "after POST /v1/messages/batches",
                  "before GET /v1/messages/batches/*", "before GET /v1/messages/batches/*/results",
                  "after GET /v1/messages/batches/*/results", "before DELETE /v1/messages/batches/*",
                  "after DELETE /v1/messages/batches/*"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "place"), [(kind, place) for kind, places in PLACES.items() for place in places]
)
async def test_a_worker_that_dies_at_a_call_of_the_service_leaves_a_batch_that_is_sent_once(
    redis_url, kind, place, monkeypatch
):
    async with dying(redis_url, kind, monkeypatch) as (work, server, turns, cell):
        when, call = place.split(" ", 1)
        reached = asyncio.Event()
        getattr(server, when)[call] = lambda: hang(reached)
        first = asyncio.create_task(work_on(work))
        await asyncio.wait_for(reached.wait(), patience(20))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        getattr(server, when).clear()
        await finish(work, turns)
        assert len(server.orders) == 1
        assert server.usual == []
        await wait_until_async(lambda: is_forgotten(work, cell))
        lost = 1 if place in ("after POST /v1/files", "before POST /v1/batches") else 0
        assert len(server.files) == lost, "OpenAI deletes it after two days"
        assert server.messages == {}


async def is_forgotten(work, cell):
    await work()
    return not await cell.redis.exists(cell.keys.batches)


async def test_the_batch_of_a_dead_worker_is_found_among_others_of_the_same_size(redis_url, monkeypatch):
    async with dying(redis_url, "anthropic", monkeypatch) as (work, server, turns, cell):
        others = [server.order_of_another(2)]
        await die_at(server.after, "POST /v1/messages/batches", work)
        others += [server.order_of_another(2), server.order_of_another(3)]
        await finish(work, turns)
        assert len(server.orders) == 4
        assert server.usual == []
        await wait_until_async(lambda: is_forgotten(work, cell))
        assert {*server.messages} == {*others}, "what belongs to others is neither cancelled nor deleted"
        assert "POST /v1/messages/batches/*/cancel" not in server.heard


async def test_the_batch_of_a_dead_worker_is_found_on_a_later_page(redis_url, monkeypatch):
    async with dying(redis_url, "anthropic", monkeypatch) as (work, server, turns, _):
        await die_at(server.after, "POST /v1/messages/batches", work)
        for _ in range(250):
            server.order_of_another(1)
        await finish(work, turns)
        assert len(server.orders) == 251
        assert server.heard.count("GET /v1/messages/batches") == 3


async def test_the_batch_of_a_dead_worker_is_found_though_a_turn_had_ended_before_it_was_sent(
    redis_url, monkeypatch
):
    """Another worker had made it of two steps, and died before it sent anything."""
    async with dying(redis_url, "anthropic", monkeypatch) as (work, server, turns, cell):
        with monkeypatch.context() as dead:
            dead.setattr(batches, "requests_of", stop)
            await wait_until_async(lambda: made(work, cell))
        await turns[0].cancel()
        await die_at(server.after, "POST /v1/messages/batches", work)
        await finish(work, turns[1:])
        assert list(map(len, server.requests.values())) == [1]
        assert server.usual == []


async def test_the_batch_of_a_dead_worker_is_deleted_though_all_its_turns_have_ended(redis_url, monkeypatch):
    async with dying(redis_url, "anthropic", monkeypatch) as (work, server, turns, cell):
        await die_at(server.after, "POST /v1/messages/batches", work)
        other = server.order_of_another(2)
        for turn in turns:
            await turn.cancel()
            await wait_until_async(lambda turn=turn: is_cancelled(turn))
        await wait_until_async(lambda: is_forgotten(work, cell))
        assert [*server.messages] == [other]


async def is_cancelled(turn):
    return await turn.status() == "cancelled"


async def stop(*_):
    raise Stopped


async def made(work, cell):
    await work()
    return await cell.redis.exists(cell.keys.batches)


async def test_a_batch_without_a_label_is_sent_if_the_one_that_was_found_is_another(redis_url, monkeypatch):
    """Another deployment of the same account has sent as many requests at the same time."""
    async with dying(redis_url, "anthropic", monkeypatch) as (work, server, turns, _):
        await die_at(server.before, "POST /v1/messages/batches", work)
        other = server.order_of_another(2)
        await finish(work, turns)
        assert len(server.orders) == 2
        assert server.usual == []
        assert other in server.messages, "what belongs to others is neither cancelled nor deleted"
        assert "POST /v1/messages/batches/*/cancel" not in server.heard


async def test_a_batch_of_others_that_these_delete_takes_no_answer_from_ours(redis_url, monkeypatch):
    async with dying(redis_url, "anthropic", monkeypatch) as (work, server, turns, _):
        await die_at(server.before, "POST /v1/messages/batches", work)
        other = server.order_of_another(2)
        server.before["GET /v1/messages/batches/*"] = lambda: server.messages.pop(other, None)
        await finish(work, turns)
        assert len(server.orders) == 2
        assert server.usual == []


async def test_a_worker_with_another_key_or_without_one_leaves_batches_to_others(redis_url, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with dying(redis_url, "openai", monkeypatch) as (work, server, turns, cell):
        others = [OpenAIResponses(base_url=f"{server.url}/v1", api_key="other"), OpenAIResponses()]
        for other in others:

            async def opened(name, other=other):
                return other

            batcher = Batcher(cell, ["openai"], opened, Settings(redis_url=redis_url, **SOON))
            assert await batcher._take_all(), "something is to be sent"
        assert server.heard == []
        await finish(work, turns)
        assert server.usual == []
        for other in others:
            await other.aclose()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_is_refused_takes_no_answer_from_the_turns(redis_url, monkeypatch, status):
    async with dying(redis_url, "openai", monkeypatch) as (work, server, turns, _):
        server.before["POST /v1/files"] = lambda: refuse(status)
        await work()
        server.before.clear()
        await finish(work, turns)
        assert len(server.orders) == 1
        assert server.usual == []


def refuse(status):
    raise Refused(status, "this key is not valid")


async def die_at(place, call, work):
    """A worker dies when it makes this call, ``before`` or ``after`` the service has answered it."""
    reached = asyncio.Event()
    place[call] = lambda: hang(reached)
    worker = asyncio.create_task(work_on(work))
    await asyncio.wait_for(reached.wait(), patience(20))
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    place.clear()


WRITES = [
    *(("take_batch", number) for number in (1, 2, 3)), *(("note", number) for number in (1, 2, 3)),
    ("deliver", 1), ("deliver", 2),
]  # fmt: skip
"""The writes of a worker, and at which of its calls it dies. Two batches of turns are delivered in two calls."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("write", "number"), WRITES)
async def test_a_worker_that_dies_at_a_write_of_its_own_leaves_a_batch_that_is_sent_once(
    redis_url, write, when, number, monkeypatch
):
    async with dying(redis_url, "openai", monkeypatch) as (work, server, turns, cell):
        real, calls = getattr(batches, write), 0

        async def deadly(*given, **options):
            nonlocal calls
            calls += 1
            if calls == number and when == "before":
                raise Stopped
            found = await real(*given, **options)
            if calls == number:
                raise Stopped
            return found

        monkeypatch.setattr(batches, write, deadly)
        await finish(work, turns)
        assert len(server.orders) == 1
        assert server.usual == []
        await wait_until_async(lambda: is_forgotten(work, cell))
        assert calls >= number
        lost = 1 if (write, number) == ("note", 1) else 0
        assert len(server.files) == lost, "OpenAI deletes it after two days"


async def finish(work, turns):
    async def ended():
        await work()
        return [await turn.status() for turn in turns] == ["finished"] * len(turns)

    await wait_until_async(ended)
    for turn in turns:
        events = [event.type async for event in turn.stream()]
        assert events.count("turn_resumed") == events.count("turn_sleeping") == 1
        assert (await turn.result(5)).text == "Hello."


@pytest.mark.parametrize("number", range(1, 7))
async def test_a_worker_that_dies_at_any_write_of_a_batched_turn_asks_once(
    redis_url, redis, monkeypatch, number
):
    """The turn's worker: it notes the step, collects its request, suspends the turn, and continues it."""
    async with working(redis_url, "openai") as (client, server):
        real, calls = Cell.run, 0

        async def deadly(self, name, *arguments):
            nonlocal calls
            found = await real(self, name, *arguments)
            if name in ("append_step", "batches/collect", "suspend"):
                calls += 1
                if calls == number:
                    lose(redis)
            return found

        monkeypatch.setattr(Cell, "run", deadly)
        turn = await client.submit("s", "The sum of 2 and 3?", agent="a", service="batch")
        assert (await turn.result(20)).text == "It is 5."
        assert calls >= number
    assert len(server.orders) == 2
    assert sum(map(len, server.requests.values())) == 2
    assert server.usual == []
