"""A power loss of Redis: an ``at_most_once`` tool waits for the disk, and a journal that lost its end starts again."""

import pytest
from redis import Redis
from support.ensemble import open_ensemble
from support.eventually import wait_until_async
from support.servers import RedisServer, installed_kinds

from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.preflight import wait_for_disk

pytestmark = pytest.mark.one_server


@pytest.mark.parametrize(
    ("kind", "appendonly", "says"),
    [
        ("valkey", True, True),
        ("valkey", False, False),
        pytest.param(
            "redis", True, False,
            marks=pytest.mark.skipif("redis" not in installed_kinds(), reason="redis-server is not installed"),
        ),
    ],
)  # fmt: skip
async def test_a_server_that_can_say_so_is_waited_for_until_it_has_written(kind, appendonly, says):
    """Redis 7.0, as Debian has it, does not know WAITAOF."""
    with RedisServer(kind, appendonly=appendonly) as server:
        async with open_redis(server.url) as redis:
            cell = Cell(redis)
            await redis.set("ant:x", 1)
            assert await wait_for_disk(cell) is says


async def test_a_tool_that_must_not_start_twice_starts_when_its_start_is_on_disk(tmp_path, monkeypatch):
    """What is on disk when the tool starts is all that a power loss leaves: the start is in it."""
    order = []
    append = Cell.append_step

    async def waited(cell, *args):
        assert await wait_for_disk(cell, *args) is True
        order.append("on disk")
        return True

    async def appended(cell, *args, entries, **options):
        if not entries:
            order.append("held")
        else:
            order.append("started" if b"tool_started" in entries[0] else "step")
        return await append(cell, *args, entries=entries, **options)

    monkeypatch.setattr("antiphon_worker.process.journal.wait_for_disk", waited)
    monkeypatch.setattr(Cell, "append_step", appended)
    with RedisServer(appendonly=True) as server:
        async with open_ensemble(server.url, tmp_path / "stage") as ensemble, ensemble.worker():
            await (await ensemble.submit("s", "buy tool:note tool:pay")).result(60)
            assert order.count("on disk") == 1, "only such a tool waits"
            assert order[order.index("on disk") - 1] == "started"
            assert order.index("on disk") > order.index("started")
            assert order[order.index("on disk") + 1] == "held"


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_turn_whose_journal_has_lost_its_end_starts_again_from_what_is_left(
    ensemble, redis_url, lost
):
    async with ensemble.worker():
        turn = await ensemble.submit("s", "two tool:note tool:wait")
        await wait_until_async(lambda: len(ensemble.stage.notes("tool")) == 2)
        with Redis.from_url(redis_url) as redis:
            length = redis.llen(f"ant:journal:{turn.id}")
            redis.ltrim(f"ant:journal:{turn.id}", 0, length - 1 - lost)
        ensemble.stage.open("tool")
        assert (await turn.result(60)).text
        await ensemble.whole("s")
        events = await ensemble.events("s")
        assert [event.reason for event in events if event.type == "turn_retrying"] == [
            f"Redis has lost a part of it: The journal has {length - lost} entries instead of {length}."
        ]
        assert not any(event.type == "turn_failed" for event in events)


async def test_a_tool_whose_start_is_lost_before_it_is_on_disk_starts_once(redis_url, tmp_path, monkeypatch):
    """Redis comes back without the start, and then says truly that all it has is on its disk."""
    lost = []

    async def waited(cell, *args):
        if not lost:
            with Redis.from_url(redis_url) as redis:
                (journal,) = redis.keys("ant:journal:*")
                lost.append(redis.rpop(journal))
        return True

    monkeypatch.setattr("antiphon_worker.process.journal.wait_for_disk", waited)
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker():
        turn = await ensemble.submit("s", "buy tool:pay")
        assert (await turn.result(60)).text
        assert b"tool_started" in lost[0]
        assert len(ensemble.stage.notes("tool")) == 1
        assert (await ensemble.types("s")).count("turn_retrying") == 1
        await ensemble.whole("s")


async def test_a_journal_that_loses_its_end_before_it_is_steered_starts_again(
    redis_url, tmp_path, monkeypatch
):
    lost = []
    steer = Cell.steer

    async def steered(cell, turn, **options):
        if not lost:
            lost.append(await cell.redis.rpop(cell.keys.journal(turn.turn_id)))
        return await steer(cell, turn, **options)

    monkeypatch.setattr(Cell, "steer", steered)
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker():
        turn = await ensemble.submit("s", "look around tool:wait")
        await ensemble.seen("s", "tool_call")
        steering = await ensemble.submit("s", "and then", if_busy="steer")
        ensemble.stage.open("tool")
        response = await turn.result(60)
        assert lost
        assert (await steering.result(60)).text == response.text
        assert (await ensemble.types("s")).count("turn_retrying") == 1
        await ensemble.whole("s")
