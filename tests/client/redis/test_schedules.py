"""Schedules: one turn for each due time, whoever submits it, and whoever dies while doing so."""

import asyncio

import pytest
from redis import Redis
from support.cells import START_MS
from support.eventually import wait_until

from antiphon.client import AsyncClient, Client
from antiphon.errors import LimitReached, NotFound, StoreUnavailable, UsageError, WrongTenant
from antiphon.input.limits import Limits
from antiphon.input.request import AgentSpec
from antiphon.redis import schedules as module
from antiphon.redis.schedules import DueSchedules, next_due
from antiphon.wire.lists.schedules import advance, stored, write_schedule

AGENT = AgentSpec(provider="scripted", model="m")
pytestmark = pytest.mark.lasting_keys(
    "ant:schedule:*", "ant:schedules", "ant:scheduled:*", "ant:tenant_schedules:*"
)


async def scheduled(client, cell, **options):
    """A schedule that is due every ten seconds, and the cell's clock set to that of the server."""
    options = {"every": 10, "agent": AGENT, **options}
    await client.schedules("s").set("tick", "Tick", **options)
    cell.server_ms = cell.now  # by the clock of the test
    await cell.redis.zadd("ant:schedules", {"tick:s": START_MS + 10_000})


async def submit_due(cell):
    return await DueSchedules(cell).submit()


async def turns(cell):
    return [turn.decode() for turn in await cell.redis.lrange("ant:turns:s", 0, -1)]


async def due(cell):
    return (await stored(cell, ["tick:s"]))[0].due


async def test_each_due_time_submits_one_turn(cell, client):
    await scheduled(client, cell)
    assert await submit_due(cell) == 0
    for number in range(1, 4):
        await cell.wait(10_000)
        assert await submit_due(cell) == 1
        assert await submit_due(cell) == 0
        assert len(await turns(cell)) == number
        assert await due(cell) == START_MS + 10_000 * (number + 1)
    (shown,) = [one async for one in client.schedules("s")]
    assert (shown.last_turn, shown.error, shown.every) == ((await turns(cell))[-1], None, 10)
    assert (await (await client.turn(shown.last_turn)).info()).input[0].text == "Tick"
    await client.schedules("s").delete("tick")


async def test_a_tenant_has_a_limited_number_of_schedules(cell, redis_url, monkeypatch):
    monkeypatch.setattr("antiphon.wire.lists.schedules.LIMITS", Limits(tenant_schedules=2))
    async with AsyncClient(redis_url) as client:

        async def set_one(session, name, tenant="a"):
            await client.schedules(session, tenant=tenant).set(name, "Tick", every=10, agent=AGENT)

        async def refused(session, name):
            with pytest.raises(LimitReached, match="2 schedules already") as raised:
                await set_one(session, name)
            assert raised.value.limit == "tenant_schedules"

        await set_one("s", "one")
        await set_one("t", "two")
        await refused("s", "three")
        await set_one("s", "one")
        await set_one("other", "three", "b")
        await set_one("nobody", "three", None)
        await client.schedules("s").delete("one")
        await set_one("s", "three")
        await refused("s", "four")
        await client.session("t").delete()
        await set_one("s", "four")
        await refused("s", "five")
        # An older release, which does not count, has removed one.
        await cell.redis.delete("ant:schedule:four:s")
        await set_one("s", "five")
        await refused("s", "six")
        await cell.redis.set("ant:tenant_schedules:a", "damaged")
        for session in ("s", "other", "nobody"):
            await client.session(session).delete()
        assert not [one async for one in client.schedules()]


async def test_the_tenant_of_a_schedule_may_change(cell, client):
    for tenant in ("a", "b", "b"):
        await client.schedules("s").set("tick", "Tick", every=10, agent=AGENT, tenant=tenant)
    counted = {key.decode() for key in await cell.redis.keys("ant:tenant_schedules:*")}
    assert counted == {"ant:tenant_schedules:b"}
    await client.schedules("s").delete("tick")
    assert not await cell.redis.keys("ant:tenant_schedules:*")


async def test_several_workers_submit_it_once(cell, client):
    await scheduled(client, cell)
    await cell.wait(10_000)
    assert sum(await asyncio.gather(*(submit_due(cell) for _ in range(8)))) == 1
    assert len(await turns(cell)) == 1
    await client.schedules("s").delete("tick")


async def test_a_worker_that_dies_between_turn_and_schedule_costs_and_doubles_nothing(
    cell, monkeypatch, client
):
    await scheduled(client, cell)
    await cell.wait(10_000)

    async def dies(*_):
        raise StoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(module, "advance", dies)
        with pytest.raises(StoreUnavailable):
            await submit_due(cell)
    await cell.end(await cell.take_one())
    assert await submit_due(cell) == 1
    assert len(await turns(cell)) == 1
    await client.schedules("s").delete("tick")


async def test_times_that_were_missed_make_one_turn(cell, client):
    await scheduled(client, cell)
    await cell.wait(57_000)
    assert await submit_due(cell) == 1
    assert await due(cell) == START_MS + 60_000, "it keeps its rhythm"
    await client.schedules("s").delete("tick")


async def test_what_is_paused_or_deleted_submits_nothing(cell, client):
    ours = client.schedules("s")
    await scheduled(client, cell)
    await ours.pause("tick")
    await cell.wait(10_000)
    assert await submit_due(cell) == 0
    assert [one.due async for one in ours] == [None]
    assert not await advance(cell, "tick:s", START_MS + 10_000, START_MS + 20_000, "t", "")
    await ours.resume("tick")
    assert [one.due is not None async for one in ours] == [True]
    await ours.delete("tick")
    assert [one async for one in ours] == []
    assert not await write_schedule(cell, "s", "tick", "5", {})
    assert await cell.redis.keys("ant:schedule*") == []
    for act in (ours.pause, ours.resume, ours.delete):
        with pytest.raises(NotFound):
            await act("tick")


async def test_the_schedules_of_a_session_go_with_it(cell, client):
    await scheduled(client, cell)
    await client.schedules("s").set("paused", "x", every=60, agent=AGENT)
    await client.schedules("s").pause("paused")
    await client.schedules("other:s").set("tick", "x", every=60, agent=AGENT)
    await client.schedules("other:s").pause("tick")
    await cell.wait(10_000)
    assert await client.session("s").delete() is False, "it had not begun"
    assert await submit_due(cell) == 0
    assert [one async for one in client.schedules("s")] == []
    assert [(one.session_id, one.name) async for one in client.schedules()] == [("other:s", "tick")]
    await client.schedules("other:s").delete("tick")
    assert await cell.redis.keys("ant:schedule*") == []


async def test_a_turn_of_a_schedule_that_is_deleted_meanwhile_does_not_run(cell, monkeypatch, client):
    await scheduled(client, cell)
    await cell.wait(10_000)
    submit = cell.submit

    async def submit_late(*given, **options):
        await client.session("s").delete()
        return await submit(*given, **options)

    monkeypatch.setattr(cell, "submit", submit_late)
    assert await submit_due(cell) == 0
    assert [await (await client.turn(turn)).status() for turn in await turns(cell)] == ["cancelled"]


async def test_turns_of_a_schedule_have_its_priority(cell, client):
    await scheduled(client, cell, priority="low")
    await cell.wait(10_000)
    assert await submit_due(cell) == 1
    assert await cell.redis.hget(f"ant:turn:{(await turns(cell))[0]}", "priority") == b"low"
    await client.schedules("s").delete("tick")
    await cell.redis.flushdb()


async def test_a_turn_that_is_refused_is_told_and_the_next_time_comes(cell, client):
    await scheduled(client, cell)
    await client.session("s", agent="any").close()
    await cell.wait(10_000)
    assert await submit_due(cell) == 1
    (shown,) = [one async for one in client.schedules()]
    assert "closed" in shown.error
    assert await due(cell) == START_MS + 20_000
    await client.schedules("s").delete("tick")


async def test_a_turn_that_is_refused_for_now_is_submitted_when_there_is_room(cell, caplog, client):
    """Until the next time at which the schedule is due, which is then tried itself."""
    await client.set_tenant_limits("acme", waiting=1)
    await cell.put("blocks", "other", tenant="acme")
    await cell.put("waits", "another", tenant="acme")
    await scheduled(client, cell, tenant="acme")
    await client.schedules("t").set("beside", "Tick", every=10, agent=AGENT)
    await cell.redis.zadd("ant:schedules", {"beside:t": START_MS + 10_000})
    scheduler = DueSchedules(cell)
    await cell.wait(10_000)
    assert await scheduler.submit() == 1, "of the other schedule"
    await cell.wait(9_999)
    assert (await scheduler.submit(), await due(cell)) == (0, START_MS + 10_000)
    assert caplog.text.count("tick:s stays due") == 1
    await cell.wait(1)
    await scheduler.submit()
    assert (await turns(cell), await due(cell)) == ([], START_MS + 20_000)
    assert "limit waiting" in (await anext(aiter(client.schedules("s")))).error
    for turn in (await cell.take()).turns:
        await cell.end(turn)
    await cell.wait(5_000)
    assert (await scheduler.submit(), len(await turns(cell))) == (1, 1)
    assert await due(cell) == START_MS + 30_000
    for name, where in (("tick", "s"), ("beside", "t")):
        await client.schedules(where).delete(name)
    await cell.redis.flushdb()


@pytest.mark.parametrize("damage", ["wrong type", "no hash", "not UTF-8"])
async def test_a_damaged_schedule_delays_no_other_one(cell, damage, client):
    await scheduled(client, cell)
    if damage == "wrong type":
        await cell.redis.set("ant:schedule:bad:s", "x")
    await cell.redis.zadd("ant:schedules", {b"\xff" if damage == "not UTF-8" else "bad:s": float("-inf")})
    scheduler = DueSchedules(cell)
    for number in range(1, 3):
        await cell.wait(10_000)
        assert await scheduler.submit(count=1) == 1
        assert len(await turns(cell)) == number
    await cell.redis.flushdb()


async def test_schedules_that_cannot_be_read_hold_up_no_other_one_and_are_told_once(cell, caplog, client):
    for number in range(7):
        await client.schedules("s").set(f"broken{number}", "Tick", every=10, agent=AGENT)
        await cell.redis.hset(f"ant:schedule:broken{number}:s", "plan", "{")
        await cell.redis.zadd("ant:schedules", {f"broken{number}:s": START_MS})
    await scheduled(client, cell)
    due = DueSchedules(cell)
    for _ in range(3):
        await cell.wait(10_000)
        assert await due.submit(count=2) == 1
    assert sum("cannot be read" in line for line in caplog.messages) == 7


async def test_a_tenant_sees_and_changes_its_own(client):
    await client.schedules("s", tenant="acme").set("tick", "Tick", every=60, agent=AGENT)
    other = client.schedules("s", tenant="other")
    assert [one async for one in client.schedules(tenant="other")] == []
    assert [one.tenant async for one in client.schedules(tenant="acme")] == ["acme"]
    for act in (other.pause, other.resume, other.delete):
        with pytest.raises(WrongTenant):
            await act("tick")
    with pytest.raises(WrongTenant):
        await other.set("tick", "Another", every=60, agent=AGENT)
    await client.schedules("s").delete("tick")


@pytest.mark.parametrize(
    "wrong",
    [{}, {"every": 0.1}, {"every": 60, "cron": "* * * * *"}, {"cron": "x"}, {"cron": "* * * * *", "tz": "Nowhere"},
     {"every": 60, "key": "k"}, {"every": 60, "name": "a:b"}],
)  # fmt: skip
async def test_what_is_no_schedule_is_refused(wrong):
    async with AsyncClient("redis://localhost:1/0", retries=0) as client:
        options = {"name": "tick", **wrong}
        with pytest.raises(UsageError):
            await client.schedules("s").set(options.pop("name"), "x", **options)
        with pytest.raises(UsageError, match="Name the session"):
            await client.schedules().set("tick", "x", every=60)


def test_cron_text_goes_by_the_clock_on_the_wall():
    day = 24 * 3600_000
    start = 1_774_483_200_000  # 2026-03-26 00:00 UTC; Berlin puts its clocks forward on the 29th
    found, at = [], start
    for _ in range(5):
        at = next_due(0, "0 9 * * *", "Europe/Berlin", after=at, now=at)
        found.append((at - start) % day // 3600_000)
    assert found == [8, 8, 8, 7, 7]


@pytest.mark.one_server
def test_workers_that_are_killed_submit_each_time_once(redis_url, processes):
    with Client(redis_url) as client, Redis.from_url(redis_url) as redis:
        client.schedules("s").set("tick", "Tick", every=1, agent=AGENT)
        for count in (1, 3, 5):
            workers = [processes.worker(redis_url) for _ in range(2)]
            wait_until(lambda count=count: redis.llen("ant:turns:s") >= count, 60)
            for worker in workers:
                worker.kill()
        client.schedules("s").delete("tick")
        keys = [
            redis.hget(f"ant:turn:{turn.decode()}", "key").decode()
            for turn in redis.lrange("ant:turns:s", 0, -1)
        ]
        times = [int(key.split()[-1]) for key in keys]
        assert times == sorted(set(times)), "one turn for each time, in their order"
        assert {(time - times[0]) % 1000 for time in times} == {0}
        processes.worker(redis_url)  # which ends what the others have left
        for turn in client.turns("s"):
            turn.result(30)
