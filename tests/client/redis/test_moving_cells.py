"""`antiphon cells move`: a cell is copied while it is used, and is at one place at every moment."""

import asyncio
import contextlib
import itertools
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis import Redis
from support import forks
from support.clusters import Cluster
from support.eventually import patience, wait_until_async
from support.here import running_worker
from support.servers import RedisServer

from antiphon.client import AsyncClient
from antiphon.errors import SettingsError, StoreError, StoreUnavailable, StoreUnsupported, UsageError
from antiphon.redis.cells import open_cells
from antiphon.redis.moving import move_cells
from antiphon.wire import moving
from antiphon.wire.cell import Cell
from antiphon.wire.changes import Changes
from antiphon.wire.connection.open import cell_urls, open_redis
from antiphon.wire.moving import Mover, guards, keys_of_cell

COMMAND = str(Path(sys.executable).with_name("antiphon"))

pytestmark = [pytest.mark.main_path, pytest.mark.own_server, pytest.mark.lasting_keys("ant:*")]


@contextlib.asynccontextmanager
async def cell_at(url, *, checked=True):
    """The cell of a URL; as a release that knows nothing of moves if its connections are not ``checked``."""
    (place,) = cell_urls(url)
    cell = Cell(open_redis(place, retries=0))
    if not checked:
        cell.redis.connection_pool.moved_key = ""
    try:
        yield cell
    finally:
        await cell.redis.aclose()


READERS = {
    "string": lambda redis, key: redis.get(key),
    "hash": lambda redis, key: redis.hgetall(key),
    "list": lambda redis, key: redis.lrange(key, 0, -1),
    "set": lambda redis, key: redis.smembers(key),
    "zset": lambda redis, key: redis.zrange(key, 0, -1, withscores=True),
    "stream": lambda redis, key: redis.xrange(key),
}


async def value_of(redis, key):
    return await READERS[(await redis.type(key)).decode()](redis, key)


async def content(url):
    """All keys of the cell but those that refuse calls, with their values, without the names of its place."""
    found = {}
    async with cell_at(url, checked=False) as cell:
        async for keys in keys_of_cell(cell):
            for key in keys:
                kept = key.decode().replace(cell.keys.prefix, "ant", 1).replace(cell.keys.rq, "rq", 1)
                found[kept] = (await value_of(cell.redis, key), await cell.redis.pttl(key) > 0)
        queues = await cell.redis.smembers(cell.keys.of_rq("rq_queues"))
        found["queues"] = {name.decode().replace(cell.keys.rq, "rq", 1) for name in queues}
    return found


async def move(source, target, **options):
    said = []
    moved = await move_cells(source, target, prefix="ant", say=said.append, **options)
    return moved, said


async def some_work(client):
    """Sessions in several states: idle, with a turn that waits, and with one that is delayed."""
    await client.submit("queued", "Hi", agent="a")
    await client.submit("queued", "and again", agent="a", tenant=None)
    await client.submit("delayed", "later", agent="a", delay=3600)
    await client.schedules("queued").set("daily", "Report", every=86400, agent="a")


@pytest.fixture
def worked(redis_url):
    """The URL of a server with some work."""

    async def submit():
        async with AsyncClient(redis_url) as client:
            await some_work(client)

    asyncio.run(submit())
    return redis_url


async def test_everything_of_a_cell_is_at_the_new_place_and_nothing_at_the_old_one(worked, cluster):
    before, target = await content(worked), cluster.url(1)
    (moved,), said = await move(worked, target)
    assert await content(target) == before
    assert moved.keys == len(before) - 1
    assert said
    async with cell_at(worked, checked=False) as cell:
        left = [key.decode() async for keys in keys_of_cell(cell) for key in keys]
        assert set(left) <= set(guards(cell.keys))
    async with AsyncClient(target) as client:
        assert {row.session_id async for row in client.sessions()} == {"queued", "delayed"}
    (back,), _ = await move(target, worked)
    assert await content(worked) == before
    assert back.keys == moved.keys


def stay(client):
    """Let a client stay at the old place of a cell that moves, as one that may not log in at the new one."""
    for cell in client.connections.cells:
        cell.redis.reopen = None
    return client


async def refused_by(url):
    """The errors of calls there: of each way to a cell, and of a release that knows nothing of moves."""
    async with AsyncClient(url, retries=0) as client:
        stay(client)
        for call in (
            client.submit("new", "Hi", agent="a"),
            client.snapshot("queued"),
            anext(client.subscribe("queued", 0)),
            anext(aiter(client.sessions())),
        ):
            with pytest.raises(StoreError) as found:
                await asyncio.wait_for(call, patience(30))
            yield found.value


async def refuses_older_releases(url):
    async with cell_at(url, checked=False) as cell:
        with contextlib.suppress(StoreError):
            assert not (await cell.claim("w", "t", lease_ms=1000, limit=1, queues=["antiphon"])).turns
        with pytest.raises(StoreError):
            await cell.reap()
    async with AsyncClient(url) as client:
        for cell in client.connections.cells:
            cell.redis.connection_pool.moved_key = ""
        with pytest.raises(StoreError):
            await client.submit("new", "Hi", agent="a")
        with pytest.raises(StoreError):
            await client.submit("queued", "Hi", agent="a")


async def test_the_old_place_refuses_every_call_of_every_release(worked, other):
    async with AsyncClient(worked) as connected:
        await stay(connected).snapshot("queued")
        await move(worked, other)
        with pytest.raises(StoreUnsupported, match=f"This cell was moved to {other.removesuffix('/0')}"):
            await connected.snapshot("queued")
    assert [type(error) async for error in refused_by(worked)] == [StoreUnsupported] * 4
    await refuses_older_releases(worked)


async def test_a_worker_that_holds_a_turn_at_the_old_place_changes_nothing_there(worked, other):
    async with cell_at(worked, checked=False) as cell:
        (turn, *_) = (await cell.claim("w", "t", lease_ms=60_000, limit=1, queues=["antiphon"])).turns
        await move(worked, other)
        assert await cell.append_step(turn, length=0, step=1, entries=[b"{}"], bodies=[]) == "SUPERSEDED"
        assert await cell.finish(turn, "finished", bodies=[]) is False
        assert await cell.renew("w", [(turn.session_id, turn.fence)], lease_ms=1000) == ["SUPERSEDED"]
    async with cell_at(other) as cell:
        assert await cell.renew("w", [(turn.session_id, turn.fence)], lease_ms=1000) == [""]


STEPS = ("_begin", "_pass", "_copy", "_remove_others", "_switch", "_arrive", "_remove_source")


class Died(Exception):
    """The mover is no more."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_mover_that_dies_at_any_step_is_followed_by_another_one(
    monkeypatch, worked, other, step, after
):
    before, whole = await content(worked), getattr(Mover, step)

    async def dies(mover, *arguments):
        if after:
            await whole(mover, *arguments)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Mover, step, dies)
        patch.setattr(Mover, "_thaw", lambda _: asyncio.sleep(0))
        with pytest.raises(Died):
            await move(worked, other, pause=0.5)
    left = STEPS.index(step) >= STEPS.index("_arrive") or (step, after) == ("_switch", True)
    if not left:
        async with AsyncClient(worked) as client:  # thawed by itself
            assert await client.snapshot("queued")
            await client.submit("later", "Hi", agent="a")
            await client.session("delayed").delete()
        before = await content(worked)
    await move(worked, other)
    assert await content(other) == before
    async with AsyncClient(worked) as client:
        with pytest.raises(StoreUnsupported, match="This cell was moved"):
            await stay(client).snapshot("queued")


async def test_the_new_place_refuses_every_call_until_the_cell_has_arrived(monkeypatch, worked, other):
    async def dies(_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Mover, "_switch", dies)
        with pytest.raises(Died):
            await move(worked, other)
    async with AsyncClient(other, retries=0) as client:
        with pytest.raises(StoreUnavailable, match="the cell is being copied here from redis"):
            await client.submit("new", "Hi", agent="a")
        with pytest.raises(StoreUnavailable, match="the cell is being copied here from redis"):
            await client.snapshot("queued")
    await refuses_older_releases(other)


def write_before_the_switch(patch, url, key, value):
    """Thaw a frozen cell too early, and write this into it."""
    frozen = Mover._written

    async def thawed_too_early(mover):
        found = await frozen(mover)
        with Redis.from_url(url) as redis:
            redis.client_unpause()
            redis.set(key, value)
        return found

    patch.setattr(Mover, "_written", thawed_too_early)


async def test_nothing_is_switched_if_something_was_written_after_the_last_copy(monkeypatch, worked, other):
    with monkeypatch.context() as patch:
        write_before_the_switch(patch, worked, "written", 1)
        with pytest.raises(StoreUnavailable, match="Nothing was switched"):
            await move(worked, other)
    async with AsyncClient(worked) as client:
        await client.submit("later", "Hi", agent="a")
    before = await content(worked)
    await move(worked, other)
    assert await content(other) == before


async def test_a_cell_that_has_left_for_another_place_meanwhile_is_not_switched(monkeypatch, worked, other):
    write_before_the_switch(monkeypatch, worked, "ant:moved", "to redis://elsewhere/0")
    with pytest.raises(UsageError, match="has moved in the meantime: to redis://elsewhere/0"):
        await move(worked, other)
    await refuses_older_releases(other)


async def test_a_cell_whose_passes_stay_long_is_not_switched(monkeypatch, worked, other):
    times = itertools.count(step=10.0)
    monkeypatch.setattr(moving, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with pytest.raises(StoreUnavailable, match=r"takes 10\.0 s, .* with --pause 30,"):
        await move(worked, other)
    async with AsyncClient(worked) as client:
        await client.submit("later", "Hi", agent="a")


async def test_of_two_movers_the_earlier_one_writes_nothing_after_the_later_one_has_begun(
    monkeypatch, worked, other
):
    copying, go_on, copy = asyncio.Event(), asyncio.Event(), Mover._copy

    async def waits(mover, *arguments):
        if not copying.is_set():
            copying.set()
            await go_on.wait()
        await copy(mover, *arguments)

    monkeypatch.setattr(Mover, "_copy", waits)
    first = asyncio.create_task(move(worked, other))
    await copying.wait()
    await move(worked, other)
    async with AsyncClient(other) as client:
        await client.session("queued").delete()
    before = await content(other)
    go_on.set()
    with pytest.raises(UsageError, match="Another `antiphon cells move` has copied this cell"):
        await first
    assert await content(other) == before


async def test_a_cell_moves_only_to_a_place_that_is_empty(worked, other):
    async with AsyncClient(other) as client:
        await client.submit("s", "Hi", agent="a")
    before = await content(other)
    with pytest.raises(
        UsageError, match="has keys of a deployment: a cell moves only to a place that is empty"
    ):
        await move(worked, other)
    assert await content(other) == before


async def test_a_move_within_one_server_is_refused_before_it_stops_writes(worked):
    before = await content(worked)
    with Redis.from_url(worked) as redis:
        redis.config_resetstat()
        for target in (worked, f"{worked.removesuffix('/0')}/1"):
            with pytest.raises(UsageError, match="are on the same server: a cell moves only to another one"):
                await move(worked, target)
        assert "cmdstat_client|pause" not in redis.info("commandstats")
        assert redis.info("keyspace").keys() == {"db0"}
    assert await content(worked) == before


@pytest.fixture
def third(server_kind):
    """The URL of a third, empty server."""
    with RedisServer(server_kind) as server:
        yield server.url


async def test_a_move_to_a_place_that_was_left_since_opens_nothing_there(worked, other, third):
    await move(worked, other)
    await move(other, third)
    before = await content(third)
    with pytest.raises(
        UsageError, match=r"does not have the cell: it moved to .*, whose marker is 'to redis"
    ):
        await move(worked, other)
    await refuses_older_releases(other)
    async with AsyncClient(other) as client:
        with pytest.raises(StoreUnsupported, match="This cell was moved to redis"):
            await stay(client).snapshot("queued")
    assert await content(third) == before


async def test_a_move_to_a_place_that_is_half_copied_from_elsewhere_opens_nothing_there(
    monkeypatch, worked, other, third
):
    await move(worked, other)
    await move(other, third)

    async def dies(_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Mover, "_switch", dies)
        with pytest.raises(Died):
            await move(third, other)
    with pytest.raises(
        UsageError, match=r"does not have the cell: it moved to .*, whose marker is 'from red"
    ):
        await move(worked, other)
    async with AsyncClient(other, retries=0) as client:
        with pytest.raises(StoreUnavailable, match="the cell is being copied here from redis"):
            await client.snapshot("queued")
    await refuses_older_releases(other)
    before = await content(third)
    await move(third, other)
    assert await content(other) == before


@pytest.mark.parametrize("limit", [1, 2_000_000])
async def test_no_server_reads_or_writes_more_than_some_megabytes_at_once(monkeypatch, worked, other, limit):
    portions, copy = [], Mover._copy

    async def noted(mover, some):
        portions.append([one.size for one in some])
        await copy(mover, some)

    monkeypatch.setattr(moving, "BYTES_AT_ONCE", limit)
    monkeypatch.setattr(Mover, "_copy", noted)
    with Redis.from_url(worked) as redis:
        for number in range(12):
            redis.set(f"ant:large-{number}", random.randbytes(600_000))
        before = await content(worked)
        redis.config_resetstat()
        (moved,), _ = await move(worked, other)
        reads = redis.info("commandstats")["cmdstat_eval_ro"]["calls"]
    assert await content(other) == before
    assert all(sum(sizes) <= limit or len(sizes) == 1 for sizes in portions)
    assert max(map(len, portions)) == 1 or limit > 1
    at_once = moved.keys if limit == 1 else 3
    assert reads >= at_once


async def test_only_the_first_pass_reads_all_keys(monkeypatch, worked, other):
    found, reads, frozen = Mover._found, [], Mover._written

    async def counted(mover, keys):
        reads.append(sorted(keys))
        return await found(mover, keys)

    async def changed_before(mover):
        with Redis.from_url(worked) as redis:
            redis.execute_command("CLIENT", "UNPAUSE")
            redis.set("ant:added", 1)
            redis.pexpire("ant:history:x", 60_000)
            redis.delete("ant:gone")
            redis.execute_command("CLIENT", "PAUSE", 5000, "WRITE")
        reads.clear()
        return await frozen(mover)

    with Redis.from_url(worked) as redis:
        redis.rpush("ant:history:x", "one")
        redis.set("ant:gone", 1)
    monkeypatch.setattr(Mover, "_found", counted)
    monkeypatch.setattr(Mover, "_written", changed_before)
    await move(worked, other)
    assert reads == [[b"ant:added", b"ant:gone", b"ant:history:x"]]
    with Redis.from_url(other) as redis:
        assert redis.get("ant:added") == b"1"
        assert redis.pttl("ant:history:x") > 0
        assert not redis.exists("ant:gone")


@pytest.mark.parametrize("lost", ["tracks", "hears", "refused"])
async def test_all_keys_are_compared_where_the_server_has_not_named_all_changes(
    monkeypatch, worked, other, lost
):
    frozen, begin, kinds = Mover._written, Changes.begin, {"tracks": 1, "hears": 0}

    async def refused(changes):
        await begin(changes)
        changes._lose()

    async def changed_before(mover):
        with Redis.from_url(worked) as redis:
            redis.execute_command("CLIENT", "UNPAUSE")
            if lost != "refused":
                line = mover._changes._lines[kinds[lost]]
                redis.client_kill_filter(_id=await line.ask("CLIENT", "ID") if lost == "tracks" else hears[0])
            redis.set("ant:added", 1)
            redis.execute_command("CLIENT", "PAUSE", 5000, "WRITE")
        return await frozen(mover)

    with Redis.from_url(worked) as redis:
        hears = []

        async def noted(changes):
            await begin(changes)
            hears[:] = [int(one["id"]) for one in redis.client_list(_type="pubsub")]

        monkeypatch.setattr(Changes, "begin", refused if lost == "refused" else noted)
        monkeypatch.setattr(Mover, "_written", changed_before)
        await move(worked, other)
    with Redis.from_url(other) as redis:
        assert redis.get("ant:added") == b"1"


async def test_a_key_expires_at_the_new_place_when_it_does_at_the_old_one(monkeypatch, worked, other):
    restore = Mover._restore
    with Redis.from_url(worked) as redis, Redis.from_url(other) as there:
        redis.set("ant:soon", "x", px=300)
        redis.set("ant:later", "x", px=60_000)
        expires_at = redis.pexpiretime("ant:later")

        async def late(mover, copies):
            await wait_until_async(lambda: not redis.exists("ant:soon"), 20, "the key has expired")
            await restore(mover, copies)

        monkeypatch.setattr(Mover, "_restore", late)
        await move(worked, other)
        assert there.pexpiretime("ant:later") == expires_at
        assert not there.exists("ant:soon")


async def test_jobs_of_other_programs_are_not_taken_along(worked, other):
    with Redis.from_url(worked) as redis:
        redis.hset("rq:job:of-another-program", "data", "x")
    with pytest.raises(UsageError, match="RQ's job of-another-program is not a turn of this deployment"):
        await move(worked, other)
    async with AsyncClient(worked) as client:
        await client.submit("later", "Hi", agent="a")


@pytest.mark.one_server
async def test_a_number_of_cells_does_not_change(redis_url):
    for source, target in (
        (redis_url, "redis+cluster://h:1?cells=64"),
        ("redis+cluster://h:1?cells=2", "redis+cluster://i:1?cells=4"),
        ("redis://g:1,redis://h:1", "redis://i:1?names=g:1/0"),
        ("redis+cluster://h:1?cells=4&cell=0-1", "redis+cluster://i:1?cells=2"),
        ("redis+cluster://h:1?cells=4&cell=2", "redis://i:1?names=cell-2"),
        (redis_url, "redis+cluster://h:1?cells=4&cell=2"),
    ):
        with pytest.raises(UsageError, match=r"cells cannot move to .* Name all cells of the deployment"):
            await move(source, target)
    for target in (
        "redis+cluster://i:1?cells=2",
        "redis+cluster://i:1?cells=2&names=g:1/0,h:1/1",
        "redis://i:1,redis://h:1",
    ):
        with pytest.raises(
            UsageError, match=r"The cells g:1/0, h:1/0 cannot become .* names of the old ones, as in"
        ):
            await move("redis://g:1,redis://h:1", target)
    part = "redis+cluster://h:1?cells=3&names=a,b,{}&cell=0-1"
    with pytest.raises(UsageError, match="The cells a, b, c cannot become a, b, x"):
        await move(part.format("c"), part.format("x"))
    with pytest.raises(SettingsError, match="2 cells need as many names, not a"):
        await move("redis://g:1,redis://h:1", "redis://i:1?names=a,redis://j:1?names=a")
    for pause in (0, 301):
        with pytest.raises(UsageError, match="pause="):
            await move(redis_url, "redis://h:1", pause=pause)


async def test_all_cells_of_a_cluster_move_to_another_one_with_the_command(cluster, server_kind):
    source = cluster.url(4)
    async with AsyncClient(source) as client:
        for number in range(8):
            await client.submit(f"s{number}", "Hi", agent="a")
    with Cluster(server_kind, primaries=1) as second:
        target = second.url(4)
        done = forks.run([COMMAND, "cells", "move", target, "--json", "--redis-url", source])
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["name"] for row in rows] == [f"cell-{number}" for number in range(4)]
        assert all(row["target"] == target and row["keys"] for row in rows)
        async with AsyncClient(target) as client:
            assert {row.session_id async for row in client.sessions()} == {f"s{n}" for n in range(8)}
        async with AsyncClient(source) as client:
            with pytest.raises(StoreUnsupported, match=r"This cell was moved to redis\+cluster"):
                await stay(client).submit("s0", "Hi", agent="a")
        async with AsyncClient(source) as client:
            assert {row.session_id async for row in client.sessions()} == {f"s{n}" for n in range(8)}


@pytest.mark.one_server
async def test_a_cell_of_a_list_moves_to_another_server_under_its_name(redis_url, other, third):
    (name, _), listed = [cell.name for cell in open_cells([redis_url, other])], f"{redis_url},{other}"
    sessions = [f"s{number}" for number in range(8)]
    async with AsyncClient(listed) as client:
        for session in sessions:
            await client.submit(session, "Hi", agent="a")
    target = f"{third}?names={name},{other}"
    moved, said = await move(listed, target)
    assert [(one.name, one.target) for one in moved] == [(name, f"{third}?names={name}")]
    assert f"{other} stays where it is." in said
    async with AsyncClient(target) as client:
        assert all([await client.snapshot(session) for session in sessions])
        assert {row.session_id async for row in client.sessions()} == {*sessions}
    with Redis.from_url(third) as redis:
        assert redis.exists("ant:sessions")


async def test_no_place_is_used_before_its_cell_has_arrived_though_another_cell_has(
    monkeypatch, redis_url, other, cluster
):
    async def dies(_):
        raise Died

    async with AsyncClient([redis_url, other]) as client:
        names = [cell.name for cell in client.connections.cells]
        sessions = [f"s{number}" for number in range(8)]
        for session in sessions:
            await client.submit(session, "Hi", agent="a")
        late = {one for one in sessions if client.connections.cell_of_session(one).name == names[1]}
    source, target = f"{redis_url},{other}", f"{cluster.url(2)}&names={','.join(names)}"
    whole = Mover.move

    async def first_only(mover):
        return await (whole(mover) if mover._from == redis_url else dies(mover))

    with monkeypatch.context() as patch:
        patch.setattr(Mover, "move", first_only)
        with pytest.raises(Died):
            await move(source, target)
    async with AsyncClient(target, retries=0) as client:
        for session in sessions:
            if session in late:
                with pytest.raises(StoreUnavailable, match="the cell is being copied here from redis"):
                    await client.submit(session, "Hi", agent="a")
            else:
                await client.submit(session, "Hi", agent="a")
    await move(source, target)
    async with AsyncClient(target) as client:
        assert {row.session_id async for row in client.sessions()} == {*sessions}


@pytest.mark.one_server
async def test_one_url_of_a_list_does_not_move(redis_url, other, third):
    async def stored(count):
        with Redis.from_url(redis_url) as redis:
            return redis.get("ant:listed") == count and redis.pttl("ant:listed") > 0

    async with running_worker(redis_url, cells=f"{redis_url},{other}"):
        await wait_until_async(lambda: stored(b"2"), description="the worker has stored how many there are")
    before = await content(redis_url)
    with pytest.raises(
        UsageError, match=r"is one of 2 cells that the deployment lists.* URLs of all of them"
    ):
        await move(redis_url, third)
    assert await content(redis_url) == before
    with Redis.from_url(third) as redis:
        assert redis.keys() == []
    async with running_worker(redis_url):
        await wait_until_async(lambda: stored(b"1"), description="another worker has stored it")
        await move(redis_url, third)


async def test_a_cell_that_has_left_its_list_arrives_all_the_same(monkeypatch, worked, other):
    async def dies(_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Mover, "_arrive", dies)
        with pytest.raises(Died):
            await move(worked, other)
    with Redis.from_url(worked) as redis:
        redis.set("ant:listed", 2)
    await move(worked, other)
    async with AsyncClient(other) as client:
        assert await client.snapshot("queued")
