"""Failed turns: listed with what was asked and why, selected, and requeued in bulk."""

import json
from datetime import UTC, datetime

import pytest
from support.cells import START_MS, open_cell
from support.servers import RedisServer

from antiphon.cli.main import main
from antiphon.client import AsyncClient, Client
from antiphon.errors import TurnNotFound, UsageError, WrongTenant

REQUEST = b'{"messages":[{"role":"user","parts":[{"type":"text","text":"Hello"}]}]}'


async def fail(cell, turn, session="s", code="provider", **options):
    await cell.put(turn, session, REQUEST, **options)
    queue = options.get("queue", "antiphon")
    await cell.end(await cell.take_one(queues=[queue]), "failed", error_code=code, error=f"no {turn}")


async def listed(client, **which):
    return [one.turn_id async for one in client.failed(**which)]


async def test_a_failed_turn_is_listed_with_its_request_its_error_and_its_runs(cell, client):
    await fail(cell, "t1", agent=b'"support"', tenant="acme")
    await client.requeue("t1")
    await cell.wait(1000)
    await cell.end(await cell.take_one(), "failed", error_code="again", error="once more")
    (found,) = [one async for one in client.failed()]
    assert (found.turn_id, found.session_id, found.queue, found.tenant) == ("t1", "s", "antiphon", "acme")
    assert (found.input[0].text, found.agent, found.code, found.error) == (
        "Hello",
        "support",
        "again",
        "once more",
    )
    assert [(run.run, run.code, run.error) for run in found.runs] == [
        (1, "provider", "no t1"), (2, "again", "once more"),
    ]  # fmt: skip
    await cell.put("t2", "s", REQUEST)
    await cell.cancel("t2", "enough")


async def test_filters_select_by_every_property(cell, client):
    await fail(cell, "t1", "a", agent=b'"one"', tenant="acme")
    await cell.wait(10_000)
    await fail(cell, "t2", "b", "limit", agent=b'{"provider":"x","model":"y","name":"two"}', queue="other")
    await cell.wait(10_000)
    await fail(cell, "t3", "a")
    assert await listed(client) == ["t3", "t2", "t1"]
    assert await listed(client, tenant="acme") == ["t3", "t1"]
    assert await listed(client, agent="one") == ["t3", "t1"], "the session's agent is the third one's too"
    assert await listed(client, agent="two") == ["t2"]
    assert await listed(client, code="limit") == await listed(client, queue="other") == ["t2"]
    between = datetime.fromtimestamp((START_MS + 5_000) / 1000, UTC)
    assert await listed(client, since=between) == ["t3", "t2"]
    assert await listed(client, since=START_MS + 10_000, until=START_MS + 20_000) == ["t2"]
    assert await listed(client, until=START_MS) == []


async def test_many_are_listed_in_pages_and_requeued_while_they_are(cell, client):
    for number in range(230):
        await fail(cell, f"t{number}", f"s{number}")
    assert len(set(await listed(client))) == 230
    told = await client.requeue_many(code="provider")
    assert len({one.id for one in told}) == 230
    assert await listed(client) == []
    assert await client.requeue_many(since=0) == []


async def test_each_is_requeued_or_refused_by_itself(cell, client):
    await fail(cell, "t1", "a")
    await cell.put("t2", "b")
    told = await client.requeue_many(["t2", "none", await client.turn("t1")])
    assert [type(one) for one in told[:2]] == [UsageError, TurnNotFound]
    assert (told[2].id, told[2].session_id) == ("t1", "a")
    assert await cell.status("t1") == "queued"


async def test_another_tenant_requeues_nothing(cell, client):
    await fail(cell, "t1", tenant="acme")
    with pytest.raises(WrongTenant):
        await client.requeue("t1", tenant="other")
    with pytest.raises(WrongTenant):
        await client.requeue(await client.turn("t1"), tenant="other")
    assert await client.requeue_many(tenant="other") == []
    assert await cell.status("t1") == "failed"
    assert (await client.requeue("t1", tenant="acme")).id == "t1"


async def test_a_damaged_turn_hides_no_other(cell, client):
    await fail(cell, "t1", "a")
    await fail(cell, "t2", "b")
    await cell.redis.hset("ant:turn:t2", "run", "junk")
    await cell.redis.zadd("rq:failed:antiphon", {"a-job-of-somebody": START_MS})
    assert await listed(client) == ["t1"]
    await cell.redis.hset("ant:turn:t2", "run", "1")


@pytest.mark.parametrize(
    "which",
    [{"since": "x"}, {"until": datetime(2026, 1, 1)}, {"queue": "a b"}, {"code": 1}],  # noqa: DTZ001
)
def test_a_wrong_filter_is_refused_at_once(which):
    client = Client("redis://localhost:1/0")
    with pytest.raises(UsageError):
        next(client.failed(**which))
    for wrong in ({}, {"turns": "t1"}, {"turns": ["t1"], "code": "x"}):
        with pytest.raises(UsageError, match="requeue_many"):
            client.requeue_many(**wrong)
    with pytest.raises(TypeError, match="keyword argument 'colour'"):
        client.failed(colour="red")
    with pytest.raises(TypeError, match="cannot be selected by 'colour'"):
        AsyncClient("redis://localhost:1/0").failed(colour="red")


@pytest.mark.one_server
async def test_all_cells_are_listed_together():
    with RedisServer() as one, RedisServer() as two:
        async with AsyncClient([one.url, two.url]) as client:
            ids = []
            for number in range(6):
                turn = await client.submit(f"s{number}", "x", queue="q")
                cell = client.connections.cell_of_turn(turn.id)
                (claimed,) = (await cell.claim("w", f"k{number}", lease_ms=9000, limit=1, queues=["q"])).turns
                await cell.finish(claimed, "failed", bodies=[b'{"type":"turn_failed"}'], error_code="x")
                ids.append(turn.id)
            assert sorted(await listed(client)) == sorted(ids)
            assert len(await client.requeue_many(since=0)) == 6
        async with AsyncClient([two.url, one.url]) as client:
            for turn in ids:
                await (await client.turn(turn)).cancel()


def test_the_commands_list_and_requeue_what_a_filter_selects(redis_url, capsys):
    with Client(redis_url) as client:
        import asyncio

        async def prepare():
            async with open_cell(redis_url) as cell:
                await fail(cell, "t1", "a", tenant="acme")
                await fail(cell, "t2", "b", "limit")

        asyncio.run(prepare())
        where = ["--redis-url", redis_url]
        assert main(["failed", *where, "--code", "limit", "--json"]) == 0
        (line,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert (line["turn_id"], line["input"][0]["parts"][0]["text"], line["runs"][0]["error"]) == (
            "t2",
            "Hello",
            "no t2",
        )
        assert main(["failed", *where, "--since", "1h"]) == 0
        assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[1:]] == ["t2", "t1"]
        assert main(["failed", *where, "--until", "2026-01-01"]) == 0
        assert capsys.readouterr().out == ""
        assert main(["requeue", *where]) == 2
        assert main(["requeue", *where, "--tenant", "acme"]) == 0
        assert capsys.readouterr().out == "t1\n"
        assert main(["requeue", *where, "--all", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"turn_id": "t2", "requeued": True, "error": None}
        assert main(["requeue", *where, "t1", "t2"]) == 2
        for turn in ("t1", "t2"):
            client.turn(turn).cancel()


async def test_turns_that_failed_in_one_second_come_in_the_order_of_their_ends(redis_url, monkeypatch):
    monkeypatch.setattr("antiphon.redis.failed.PAGE", 2)
    async with open_cell(redis_url) as cell, AsyncClient(redis_url) as client:
        for turn, queue in (
            ("b", "antiphon"),
            ("d", "antiphon"),
            ("x", "other"),
            ("a", "antiphon"),
            ("c", "antiphon"),
        ):
            await fail(cell, turn, session=turn, queue=queue)
            await cell.wait(100)
        await cell.wait(5000)
        await fail(cell, "e", session="e")
        assert await listed(client) == ["e", "c", "a", "x", "d", "b"]
        assert await listed(client, queue="antiphon") == ["e", "c", "a", "d", "b"]
