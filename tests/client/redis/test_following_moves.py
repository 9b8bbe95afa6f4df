"""Clients, workers and gateways follow a cell that moves while they use it, and are not restarted."""

import asyncio
import contextlib
import json
from urllib.parse import unquote

import pytest
from redis import Redis
from support.ensemble import Ensemble, open_ensemble
from support.event_source import EventSource
from support.eventually import patience, wait_until_async
from support.gateway import Api, follow
from support.gateway_process import Stand
from support.here import running_worker
from support.network import free_port
from support.processes import COMMAND
from support.submitting import SESSIONS, Load

from antiphon import Agent
from antiphon.client import AsyncClient, Client
from antiphon.errors import StoreUnavailable, StoreUnsupported
from antiphon.input.ids import SessionId, cell_hash
from antiphon.redis.cells import open_cells
from antiphon.redis.moving import move_cells
from antiphon.testing import script
from antiphon.wire.cell import Cell
from antiphon.wire.connection import following
from antiphon.wire.connection.moved import (
    MOVED_URLS_VARIABLE,
    CellMoved,
    new_url,
    prove,
    proves,
    secret_of,
)
from antiphon.wire.connection.open import cell_urls, open_redis
from antiphon.wire.moving import Mover
from antiphon_worker.app import App

pytestmark = [pytest.mark.main_path, pytest.mark.own_server, pytest.mark.lasting_keys("ant:*")]

LEASE = 2


async def move(source, target, cells=1):
    moved = await move_cells(source, target, prefix="ant", say=lambda _: None)
    assert len(moved) == cells


async def texts_of(turn):
    return "".join([event.text async for event in turn.stream() if event.type == "text_delta"])


async def test_a_client_and_a_worker_follow_a_cell_to_a_cluster_and_back(redis_url, cluster, tmp_path):
    target = cluster.url(1)
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker(lease=LEASE):
        held = await ensemble.submit("held", "words:5 gate:g")
        await ensemble.waits("g")
        read = asyncio.create_task(texts_of(held))
        async with Load(ensemble.client) as load:
            await move(redis_url, target)
            await load.more()
            await move(target, redis_url)
            await load.more()
        ensemble.stage.open("g")
        assert (await read).startswith("The first words.")
        await held.result(60)
        runs = [event.type for event in await ensemble.events("held")]
        assert runs.count("turn_started") == 1, "the turn went on at the new place"
        await load.whole(ensemble)
        await ensemble.whole("held")


@pytest.mark.timeout(120)
async def test_clients_and_workers_follow_the_cells_of_a_list_to_a_cluster_and_back(
    redis_url, other, cluster, tmp_path
):
    listed = [redis_url, other]
    names = [cell.name for cell in open_cells(listed)]
    source, target = ",".join(listed), f"{cluster.url(2)}&names={','.join(reversed(names))}"
    async with open_ensemble(source, tmp_path / "stage") as ensemble, contextlib.AsyncExitStack() as stack:
        for url in listed:
            await stack.enter_async_context(ensemble.worker(url=url, cells=source, lease=LEASE))
        sessions = [f"load-{number}" for number in range(SESSIONS)]
        assert {ensemble.client.connections.cell_of_session(one).name for one in sessions} == {*names}
        held = await ensemble.submit("held", "words:5 gate:g")
        await ensemble.waits("g")
        read = asyncio.create_task(texts_of(held))
        async with Load(ensemble.client) as load:
            for old, new in ((source, target), (target, source)):
                await move(old, new, cells=2)
                await load.more()
                async with AsyncClient(new) as started_later:
                    for turn_id in list(load.accepted.values())[-5:]:
                        assert await (await started_later.turn(turn_id)).result(60)
        ensemble.stage.open("g")
        assert (await read).startswith("The first words.")
        await held.result(60)
        assert [event.type for event in await ensemble.events("held")].count("turn_started") == 1
        await load.whole(ensemble)
        await ensemble.whole("held")


async def test_a_process_of_a_list_does_not_follow_to_a_cluster_without_the_name_of_its_cell(redis_url):
    with Redis.from_url(redis_url) as redis:
        redis.set("ant:moved", "to redis+cluster://new:1?cells=2&names=x,y")
    async with AsyncClient(redis_url, retries=0) as client:
        with pytest.raises(StoreUnsupported, match="None of its cells is called"):
            await client.snapshot("s")


@pytest.mark.parametrize(
    ("marker", "wrong"),
    [
        ("elsewhere", "`antiphon cells move` does not write"),
        ("to", "`antiphon cells move` does not write"),
        (b"to redis://\xff:1\x1b[2J", "`antiphon cells move` does not write"),
        ("to redis://[:1", "`antiphon cells move` does not write"),
        (f"to redis://{'h' * 400_000}:1", "`antiphon cells move` does not write"),
        ("to redis://u:hidden@h:1", "`antiphon cells move` does not write"),
        ("to redis+cluster://h:1?cells=4&cell=2&password=hidden", "`antiphon cells move` does not write"),
        ("to http://h:1", "This process cannot use it: .* must begin with redis://"),
        ("to redis+cluster://h:1?cells=2&names=a", "This process cannot use it: .* names of all 2 cells"),
        ({"to": "redis://h:1"}, "WRONGTYPE"),
    ],
)
async def test_a_marker_that_no_mover_has_written_stops_each_call_at_once(redis_url, marker, wrong):
    with Redis.from_url(redis_url) as redis:
        redis.hset("ant:moved", mapping=marker) if isinstance(marker, dict) else redis.set(
            "ant:moved", marker
        )
    async with AsyncClient(redis_url, retries=0) as client:
        for call in (client.submit("s", "Hi", agent="a"), anext(client.subscribe("s", 0))):
            with pytest.raises(StoreUnsupported, match=wrong) as found:
                await asyncio.wait_for(call, patience(30))
            assert len(str(found.value)) < 1500
            assert "hidden" not in str(found.value)
    with Redis.from_url(redis_url) as redis:
        assert redis.keys("ant:*") == [b"ant:moved"]


async def test_markers_that_lead_in_a_circle_end(redis_url, other):
    for here, there in ((redis_url, other), (other, redis_url)):
        with Redis.from_url(here) as redis:
            redis.set("ant:moved", f"to {there}")
    async with AsyncClient(redis_url, retries=0) as client:
        with pytest.raises(StoreUnsupported, match="from place to place without end: delete the one where"):
            await asyncio.wait_for(client.snapshot("s"), patience(30))


async def test_what_a_call_has_begun_at_the_old_place_ends_at_the_new_one(redis_url, other):
    """Commands with names of the old place: of a pipeline, a scan, a channel, a read and a script."""
    async with AsyncClient(redis_url) as client:
        (cell,) = client.connections.cells
        await client.submit("s", "Hi", agent="a")
        for number in range(50):
            await client.set_tenant_limits(f"t{number}", in_flight=5)
        before = cell.keys
        pipe = cell.redis.pipeline(transaction=True)
        pipe.hget(before.session("s"), "seq")
        cursor, first = await cell.redis.hscan(before.limits, 0, count=1)
        beside = cell.beside(0.1)
        await move(redis_url, f"{other.removesuffix('/0')}/1")
        assert await pipe.execute() == [b"1"]
        assert await cell.redis.zcard(before.sessions) == 1
        assert cell.database == 1
        assert cell.redis.names.number == 1
        rest = dict(first)
        while cursor:
            cursor, page = await cell.redis.hscan(before.limits, cursor, count=1)
            rest |= page
        assert len(rest) >= 50
        await beside.heard(["antiphon"], 0.01)
        assert beside.database == 1
        await beside.redis.aclose()


async def left(url):
    """Return when a cell has left its place."""
    cell = Cell(open_redis(cell_urls(url)[0]))
    cell.redis.connection_pool.moved_key = ""

    async def marked():
        return (await cell.redis.get(cell.keys.moved) or b"").startswith(b"to ")

    await wait_until_async(marked, 60, f"the cell has left {url}")
    await cell.redis.aclose()


async def test_a_worker_that_has_followed_takes_jobs_of_rq_for_the_sessions_of_its_cell(
    redis_url, other, cluster
):
    listed = [redis_url, other]
    cells = open_cells(listed)
    name = cells.of_session("s").name
    (home,) = (url for url in listed if open_cells(url).of_session("s").name == name)
    source, target = ",".join(listed), f"{cluster.url(2)}&names={','.join(cell.name for cell in cells)}"
    app = App(agents=[Agent(script("Hello."), "any", name="a")])
    async with running_worker(home, app, cells=source), AsyncClient(target) as client:
        await move(source, target, cells=2)
        cell, turn = client.connections.cell_of_session(SessionId("s")), f"{cell_hash('s')}-pushed"
        call = ["antiphon_worker.jobs.run_turn", None, ["s", "Hi", {"agent": "a"}], {}]
        await cell.redis.hset(cell.keys.of_rq("rq_job", turn), "data", json.dumps(call))
        await cell.redis.rpush(cell.keys.of_rq("rq_queue", "antiphon"), turn)
        await cell.ring("antiphon")
        await wait_until_async(lambda: ended(cell, turn), 30, "the job has ended")
        assert (await (await client.turn(turn)).result(30)).text == "Hello."


async def test_a_cursor_over_all_sessions_of_a_list_continues_on_the_cluster(redis_url, other, cluster):
    listed = [redis_url, other]
    source = ",".join(listed)
    target = f"{cluster.url(2)}&names={','.join(cell.name for cell in open_cells(listed))}"

    async def cancelled(client):
        for number in range(6):
            await (await client.submit(f"s{number}", "Hi", agent="a")).cancel()

    async with AsyncClient(source) as client, client.subscribe_all() as events:
        await cancelled(client)
        for _ in range(6):
            cursor = (await asyncio.wait_for(anext(events), patience(30))).cursor
        await move(source, target, cells=2)
        await cancelled(client)
        followed = [await asyncio.wait_for(anext(events), patience(30)) for _ in range(6)]
    async with AsyncClient(target) as later, later.subscribe_all(after=cursor) as events:
        again = [await asyncio.wait_for(anext(events), patience(30)) for _ in range(6)]
    assert {one.event.turn_id for one in again} == {one.event.turn_id for one in followed}


async def ended(cell, turn):
    """Whether a turn of a job exists; raises why the job has failed instead."""
    if reason := await cell.redis.hget(cell.keys.of_rq("rq_job", turn), "exc_info"):
        raise AssertionError(reason.decode())
    return await cell.redis.exists(cell.keys.turn(turn))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("killed", ["nothing", "worker", "gateway", "mover"])
async def test_processes_follow_a_cell_to_a_cluster_and_back_whatever_is_killed_at_the_switch(
    killed, redis_url, cluster, processes, tmp_path
):
    target, port = cluster.url(1), free_port()
    stand = Stand(redis_url, processes, tmp_path)
    (gateway, url), worker = stand.gateway(port=port), stand.worker()
    api = Api(url)
    async with AsyncClient(redis_url) as client, api.http:
        turn = await api.submit("s", "go gate:g gate:h gate:i", key="k")
        source = EventSource(f"{url}/turns/{turn}/events")
        reading = asyncio.create_task(follow(source))
        await stand.waits("g")
        async with Load(client) as load:
            for old, new, gate in ((redis_url, target, "g"), (target, redis_url, "h")):
                command = [COMMAND, "cells", "move", new, "--redis-url", old]
                mover = processes.start(*command, name="move")
                await left(old)
                if killed == "worker":
                    await asyncio.to_thread(worker.kill)
                    worker = await asyncio.to_thread(stand.worker)
                if killed == "gateway":
                    await asyncio.to_thread(gateway.kill)
                    gateway, _ = await asyncio.to_thread(stand.gateway, port=port)
                if killed == "mover":
                    await asyncio.to_thread(mover.kill)
                    mover = processes.start(*command, name="move")
                assert await asyncio.to_thread(mover.wait, 60) == 0, mover.output
                await load.more()
                stand.stage.open(gate)
                await stand.waits("h" if gate == "g" else "i")
        stand.stage.open("i")
        messages, end = await asyncio.wait_for(reading, patience(60))
        assert end == {}
        assert [int(message.id) for message in messages] == list(range(1, len(messages) + 1))
        events = [json.loads(message.data) for message in messages]
        assert [event["type"] for event in events].count("turn_finished") == 1
        assert killed == "worker" or [event["type"] for event in events].count("turn_started") == 1
        ensemble = Ensemble(redis_url, stand.stage, processes, client)
        await load.whole(ensemble)
        await ensemble.whole("s")


async def test_a_synchronous_client_follows(redis_url, other):
    with Client(redis_url) as client:
        client.submit("s", "Hi", agent="a")
        await asyncio.to_thread(asyncio.run, move(redis_url, other))
        await asyncio.to_thread(client.submit, "s", "again", agent="a", key="k")
        assert [row.session_id for row in await asyncio.to_thread(lambda: [*client.sessions()])] == ["s"]
    with Redis.from_url(redis_url) as redis:
        assert not redis.exists("ant:session:s"), "nothing was written at the old place"


async def test_a_call_waits_until_the_cell_has_arrived_and_says_where_it_is(monkeypatch, redis_url, other):
    arrive, left = Mover._arrive, asyncio.Event()
    go_on = asyncio.Event()

    async def late(mover):
        left.set()
        await go_on.wait()
        await arrive(mover)

    monkeypatch.setattr(Mover, "_arrive", late)
    async with AsyncClient(redis_url) as client:
        await client.submit("s", "Hi", agent="a")
        moving = asyncio.create_task(move(redis_url, other))
        await left.wait()
        with monkeypatch.context() as patch:
            patch.setattr(following, "ARRIVAL_SECONDS", 0)
            with pytest.raises(StoreUnavailable, match=r"the cell has moved to redis.*being copied here"):
                await client.snapshot("s")
        waiting = [asyncio.create_task(client.submit("s", "Hi", agent="a")) for _ in range(3)]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        assert not done
        go_on.set()
        await moving
        accepted = {turn.id for turn in await asyncio.gather(*waiting)}
        assert accepted <= {turn.id async for turn in client.turns("s")}
        assert len(accepted) == 3


async def test_a_cell_is_followed_from_place_to_place(redis_url, other, cluster):
    target = cluster.url(1)
    async with AsyncClient(redis_url) as late:
        await late.submit("s", "Hi", agent="a")
        await move(redis_url, other)
        await move(other, target)
        (cell,) = late.connections.cells
        assert await cell.redis.zcard(cell.keys.sessions) == 1
        assert cell.redis.names.number == 1
        assert cell.keys.tag


USERS = {"app": "p%40ss%2Fword", "admin": "root"}


@pytest.fixture
def secured(redis_url, other):
    """For each of two servers, its URL with each of two users."""
    for url in (redis_url, other):
        with Redis.from_url(url) as redis:
            for user, password in USERS.items():
                redis.acl_setuser(user, enabled=True, passwords=[f"+{unquote(password)}"], keys=["*"],
                                  channels=["*"], commands=["+@all"])  # fmt: skip
    yield [
        {user: url.replace("://", f"://{user}:{password}@") for user, password in USERS.items()}
        for url in (redis_url, other)
    ]
    with Redis.from_url(redis_url) as redis:
        redis.acl_deluser(*USERS)


async def test_the_login_of_the_old_place_is_used_where_its_password_was_proved(secured, redis_url):
    old, new = secured
    async with AsyncClient(old["app"]) as client:
        await client.submit("s", "Hi", agent="a")
        await move(old["app"], new["admin"])
        assert (await client.snapshot("s")).session_id == "s"
        (cell,) = client.connections.cells
        assert await cell.redis.execute_command("ACL WHOAMI") == "app"
    with Redis.from_url(redis_url) as redis:
        marker = redis.get("ant:moved").decode()
        assert not any(word in marker for word in ("app", "p@ss", "p%40", "root"))


async def test_another_login_is_used_where_the_setting_names_it(secured, other, monkeypatch):
    old, new = secured
    async with AsyncClient(old["app"]) as client:
        await client.submit("s", "Hi", agent="a")
        await move(old["admin"], new["admin"])
        with pytest.raises(
            StoreUnsupported, match=f"does not send its password .* set {MOVED_URLS_VARIABLE}"
        ):
            await client.snapshot("s")
        monkeypatch.setenv(MOVED_URLS_VARIABLE, f"redis://elsewhere:1, {new['admin'].removesuffix('/0')}")
        assert (await client.snapshot("s")).session_id == "s"
        (cell,) = client.connections.cells
        assert await cell.redis.execute_command("ACL WHOAMI") == "admin"


@contextlib.asynccontextmanager
async def stranger():
    """A server of somebody else: its port, and all that it was sent."""
    heard = list[bytes]()

    async def listen(reader, writer):
        heard.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
async def test_no_password_is_sent_to_a_place_that_somebody_without_it_has_written(
    secured, redis_url, scheme
):
    url = secured[0]["app"]
    async with stranger() as (port, heard):
        place = f"{scheme}://127.0.0.1:{port}{'?cells=1' if 'cluster' in scheme else ''}"
        for proof in ("", "x", prove("wrong", place), prove(secret_of(url), "redis://another:1")):
            with Redis.from_url(redis_url) as redis:
                redis.set("ant:moved", f"to {place} {proof}".strip())
            async with AsyncClient(url, retries=0) as client:
                with pytest.raises(StoreUnsupported, match="does not send its password there"):
                    await client.submit("s", "Hi", agent="a")
        assert heard == []


def test_a_proof_is_of_one_password_and_of_one_place():
    proof = prove("secret", "redis://a:1")
    assert proves(proof, "secret", "redis://a:1")
    assert not proves(proof, "Secret", "redis://a:1")
    assert not proves(proof, "secret", "redis://a:2")
    assert proof != prove("secret", "redis://a:1")
    assert prove("", "redis://a:1") == ""


@pytest.mark.parametrize(
    ("here", "place", "there"),
    [
        ("redis://u:p@a:1/3", "redis+cluster://b:2?cells=1", "redis+cluster://u:p@b:2?cells=1&cell=0"),
        ("redis+cluster://u:p@b:2?cells=1&cell=0", "redis://a:1/3", "redis://u:p@a:1/3"),
        ("rediss://u:p@a:1?ssl_ca_certs=/x", "rediss://b:2", "rediss://u:p@b:2?ssl_ca_certs=%2Fx"),
        ("rediss://u:p@a:1?ssl_ca_certs=/x", "redis://b:2", "redis://u:p@b:2"),
        ("redis://a:1?password=p", "redis://b:2", "redis://b:2?password=p"),
        ("redis+sentinel://s:1/m?sentinel_password=p", "redis://b:2", "redis://b:2"),
        ("redis://a:1", "unix:///x?db=2", "unix:///x?db=2"),
        ("redis://u:p@a:1", "redis+cluster://b:2?cells=2&names=c:1/0,a:1/0",
         "redis+cluster://u:p@b:2?cells=2&names=c:1/0,a:1/0&cell=1"),
        ("redis+cluster://b:2?cells=2&names=c:1/0,a:1/0&cell=1", "redis://a:1", "redis://a:1"),
        ("redis://x:1?names=a:1/0", "redis://y:1?names=a:1/0", "redis://y:1?names=a:1/0"),
    ],
)  # fmt: skip
def test_a_place_is_opened_with_the_login_and_the_options_of_the_old_one(here, place, there):
    marker = CellMoved(place, prove(secret_of(here), place))
    assert new_url(marker, [], here, "a:1/0") == there
    assert new_url(CellMoved(place), [there], here, "a:1/0") == there


def test_a_url_of_some_cells_of_a_cluster_leads_to_the_cell_of_the_name():
    place = "redis+cluster://b:2?cells=2&names=c:1/0,a:1/0"
    known = place.replace("//", "//u:p@") + "&cell=0"
    assert new_url(CellMoved(place), [known], "redis://a:1", "a:1/0") == known.replace("cell=0", "cell=1")
