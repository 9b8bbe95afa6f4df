"""Redis goes away, loses replies, forgets scripts, is full: nothing is lost, and everyone comes back by themselves."""

import asyncio
import logging
import time

import pytest
from redis import Redis
from support.cells import load_scripts
from support.ensemble import agent_spec, open_ensemble
from support.eventually import patience, wait_until_async
from support.proxy import Proxy
from support.servers import RedisServer

from antiphon.client import AsyncClient
from antiphon.errors import StoreFull, StreamGap
from antiphon.input.request import AgentSpec
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.scripts import load_script
from antiphon_worker.process.consumer import Consumer
from antiphon_worker.process.lease import LeaseKeeper
from antiphon_worker.settings import Settings

our_side = pytest.mark.one_server  # what our end of the wire makes of it: no server has a part in that


async def collect(client, session, seen, after=0):
    """Read a session's events along, for as long as the task lives."""
    async for event in client.subscribe(session, after):
        seen.append(event)


async def caught_up(ensemble, session, seen):
    """Return when the reader has seen all that the log holds; each once and in order."""
    events = await ensemble.events(session)
    await wait_until_async(lambda: len(seen) >= len(events), 15, "the reader has seen everything")
    assert [event.to_json() for event in seen] == [event.to_json() for event in events]


@pytest.mark.parametrize("how", ["killed", "restarted"])
async def test_a_restart_of_redis_in_mid_stream_loses_nothing(how, server_kind, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with RedisServer(server_kind, appendonly=True, appendfsync="always") as server:
        async with open_ensemble(server.url, tmp_path / "stage") as ensemble, ensemble.worker(lease=2):
            seen = []
            reader = asyncio.create_task(collect(ensemble.client, "s", seen))
            turn = await ensemble.submit("s", "go on words:30 gate:g words:30")
            waiting = await ensemble.submit("s", "and then")
            results = asyncio.gather(turn.result(60), waiting.result(60))
            await ensemble.waits("g")
            await asyncio.to_thread(server.kill if how == "killed" else server.stop)
            ensemble.stage.open("g")
            await wait_until_async(lambda: "no turns can be taken" in caplog.text, 10)
            await asyncio.to_thread(server.start)
            await results
            await caught_up(ensemble, "s", seen)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await ensemble.whole("s")
            assert await ensemble.field(turn, "attempt") == "1"
            for began, ended in (
                ("no turns can be taken", "turns are taken again after"),
                ("live channels are cut off", "live channels are back after"),
            ):
                await wait_until_async(
                    lambda b=began, e=ended: caplog.text.count(b) == caplog.text.count(e) >= 1, 10, ended
                )


@our_side
@pytest.mark.parametrize("script", ["claim", "emit", "append_step", "finish", "give_back", "renew"])
async def test_a_reply_that_is_lost_after_the_script_ran_does_no_harm(
    script, redis_url, redis_server, tmp_path
):
    sha = load_script(script).sha.encode()
    with Proxy(redis_server.port) as proxy:
        async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
            first = await ensemble.submit("s", "warm the scripts up tool:note fail:broken*2")
            async with ensemble.worker(url=proxy.url, lease=1, retry_delay=0.05):
                await first.result(60)
                proxy.drop_reply(sha, times=2)
                turn = await ensemble.submit("s", "go on tool:note words:60 fail:broken*2")
                await turn.result(60)
                await wait_until_async(lambda: proxy.lost_replies >= 1, 5, "a reply was lost")
                after = await ensemble.submit("s", "after it")
                await after.result(60)
            await ensemble.whole("s")
            assert len(ensemble.stage.notes("tool")) == 2
            assert await ensemble.field(turn, "crashes") == "0"


@our_side
async def test_a_lost_reply_to_a_submit_submits_once(redis_url, tmp_path, proxy):
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, AsyncClient(proxy.url) as client:
        await client.submit("s", "one", agent=agent_spec())
        proxy.drop_reply(load_script("submit").sha.encode())
        turn = await client.submit("s", "two", agent=agent_spec())
        assert proxy.lost_replies == 1
        async with ensemble.worker():
            await turn.result(60)
        await ensemble.whole("s")
        assert [text for role, text in await ensemble.texts("s") if role == "user"] == ["one", "two"]


@our_side
async def test_a_black_hole_longer_than_the_lease_does_not_start_a_lonely_worker_again(
    redis_url, tmp_path, proxy
):
    """Nobody else wants the session: its holder freezes, renews and goes on where it was."""
    async with (
        open_ensemble(redis_url, tmp_path / "stage") as ensemble,
        ensemble.worker(url=proxy.url, lease=0.6),
    ):
        turn = await ensemble.submit("s", "go on words:150")
        await ensemble.seen("s", "text_delta", 3)
        proxy.blackhole()
        lease = int(
            await ensemble.client.connections.cell_of_session("s").redis.hget("ant:session:s", "lease")
        )
        await wait_until_async(lambda: past(ensemble, lease), 5, "the lease has expired")
        proxy.heal()
        await turn.result(60)
        await ensemble.whole("s")


async def past(ensemble, at_ms):
    seconds, micros = await ensemble.client.connections.cell_of_session("s").redis.time()
    return seconds * 1000 + micros // 1000 > at_ms


@our_side
@pytest.mark.parametrize("how", ["blackhole", "refuse"])
async def test_a_frozen_worker_that_is_told_to_stop_gives_back_when_redis_answers(
    how, redis_url, tmp_path, proxy
):
    async with (
        open_ensemble(redis_url, tmp_path / "stage") as ensemble,
        ensemble.worker(url=proxy.url, lease=0.6) as worker,
    ):
        turn = await ensemble.submit("s", "go on words:500")
        await ensemble.seen("s", "text_delta", 3)
        getattr(proxy, how)()
        lease = int(
            await ensemble.client.connections.cell_of_session("s").redis.hget("ant:session:s", "lease")
        )
        await wait_until_async(lambda: past(ensemble, lease), 5, "the lease has expired")
        worker.abort()
        proxy.heal()
        await wait_until_async(lambda: status_is(turn, "queued"), 10, "the turn is given back")
        assert await turn.cancel() == "cancelled"


async def status_is(turn, status):
    return await turn.status() == status


@our_side
async def test_waiting_for_a_result_outlasts_an_outage(redis_url, tmp_path, proxy):
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, AsyncClient(proxy.url) as client:
        submitted = await ensemble.submit("s", "hello")
        turn = await client.turn(submitted.id)
        proxy.refuse()
        refused = proxy.accepted
        waiting = asyncio.create_task(turn.result(60))
        await wait_until_async(lambda: proxy.accepted > refused + 10 or waiting.done(), 10)
        assert not waiting.done()
        async with ensemble.worker():
            await submitted.result(60)
        proxy.heal()
        assert (await waiting).turn_id == submitted.id


async def test_a_pause_of_redis_does_not_start_turns_again(server_kind, tmp_path):
    """Leases run out while Redis stands still; their holders renew before anybody recovers their turns."""
    with RedisServer(server_kind) as server:
        async with open_ensemble(server.url, tmp_path / "stage") as ensemble, ensemble.worker(lease=0.6):
            turns = [await ensemble.submit(f"s{i}", "go on gate:g words:5") for i in range(5)]
            await ensemble.waits("g", 5)
            for _ in range(3):
                leases = [int(await held(ensemble, f"s{i}")) for i in range(5)]
                until = max(leases) + 100
                server.freeze()
                await wait_until_async(lambda until=until: time.time() * 1000 > until)
                server.thaw()
                for i, lease in enumerate(leases):
                    await wait_until_async(lambda i=i, lease=lease: renewed(ensemble, f"s{i}", lease))
            ensemble.stage.open("g")
            for turn in turns:
                await turn.result(60)
                assert await ensemble.field(turn, "attempt") == "1"
            await ensemble.whole(*(f"s{i}" for i in range(5)))


async def held(ensemble, session):
    return await ensemble.client.connections.cell_of_session(session).redis.hget(
        f"ant:session:{session}", "lease"
    )


async def renewed(ensemble, session, lease):
    return int(await held(ensemble, session) or 0) > lease


@our_side
async def test_the_lease_of_a_claim_runs_from_the_first_time_it_was_asked_for(
    redis_url, redis_server, tmp_path
):
    """The answer came late; the lease began when the script ran."""
    taken = asyncio.Queue()
    with Proxy(redis_server.port) as proxy:
        async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
            cell = Cell(open_redis(proxy.url, retries=0))
            await load_scripts(cell)
            turn = await ensemble.submit("s", "hello")

            async def hold(claimed, lease):
                await taken.put(lease)
                return "held"

            keeper = LeaseKeeper(lambda: cell, "w", 60)
            consumer = Consumer(
                cell, keeper, Settings(lease=60), "w", run_turn=hold, run_foreign=None, run_alone=None
            )
            proxy.drop_reply(load_script("claim").sha.encode())
            began = time.monotonic()
            taking = asyncio.create_task(consumer.run())
            lease = await asyncio.wait_for(taken.get(), patience(10))
            assert proxy.lost_replies == 1
            assert began + 60 <= lease.mono_deadline <= proxy.asked_at + 60
            assert time.monotonic() - began > 0.3
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            await cell.redis.aclose()
            async with ensemble.worker():
                await ensemble.client.connections.cell_of_session("s").reap(holder="w")
                await turn.result(60)


@pytest.mark.main_path
@our_side
async def test_a_worker_that_must_stop_while_redis_is_away_stops(redis_url, tmp_path, processes, proxy):
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        supervised = ensemble.supervisor(url=proxy.url, lease=1, drain=0)
        supervised.ready()
        turn = await ensemble.submit("s", "go on gate:g")
        await ensemble.waits("g")
        proxy.refuse()
        assert await asyncio.to_thread(supervised.process.terminate, 25) == 0
        assert "could not be given back" in supervised.process.output
        async with ensemble.worker(lease=1):
            await ensemble.waits("g", 2)
            ensemble.stage.open("g")
            await turn.result(60)
        await ensemble.whole("s")


async def test_scripts_that_redis_has_forgotten_are_sent_again(ensemble, redis_url):
    async with ensemble.worker():
        with Redis.from_url(redis_url) as redis:
            turn = await ensemble.submit("s", "go on words:20 gate:g words:20 tool:note")
            await ensemble.waits("g")
            redis.script_flush()
            ensemble.stage.open("g")
            await turn.result(60)
            redis.script_flush()
            again = await ensemble.submit("s", "and again")
            await again.result(60)
        await ensemble.whole("s")


async def test_at_full_memory_submits_are_refused_and_what_runs_goes_on_afterwards(server_kind, tmp_path):
    with RedisServer(server_kind) as server, Redis.from_url(server.url) as redis:
        async with open_ensemble(server.url, tmp_path / "stage") as ensemble, ensemble.worker(lease=1):
            turn = await ensemble.submit("s", "go on words:5 gate:g words:20 tool:note")
            await ensemble.waits("g")
            redis.config_set("maxmemory", redis.info("memory")["used_memory"] // 2)
            with pytest.raises(StoreFull):
                await ensemble.submit("s", "no room")
            ensemble.stage.open("g")
            await wait_until_async(lambda: ensemble.stage.notes("said"), 10)
            redis.config_set("maxmemory", 0)
            await turn.result(60)
            after = await ensemble.submit("s", "after it")
            await after.result(60)
            await ensemble.whole("s")
            assert await ensemble.field(turn, "crashes") == "0"


async def test_readers_come_back_when_redis_closes_their_connections(ensemble, redis_url):
    async with ensemble.worker():
        seen = []
        reader = asyncio.create_task(collect(ensemble.client, "s", seen))
        with Redis.from_url(redis_url) as redis:
            turn = await ensemble.submit("s", "go on words:50 gate:g words:50")
            await wait_until_async(lambda: len(seen) > 5)
            redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            await ensemble.waits("g")
            redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            ensemble.stage.open("g")
            await turn.result(60)
        await caught_up(ensemble, "s", seen)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def test_a_reader_too_slow_for_redis_reads_the_rest_from_the_log(server_kind, tmp_path):
    """Redis drops a subscriber whose output piles up; whoever blocks its own loop is such a one."""
    with RedisServer(server_kind, config={"client-output-buffer-limit": "pubsub 32kb 32kb 0"}) as server:
        async with open_ensemble(server.url, tmp_path / "stage") as ensemble, AsyncClient(server.url) as slow:
            seen = []
            reader = asyncio.create_task(collect(slow, "s", seen))
            feed = next(iter(slow.connections._feeds.values()))
            await wait_until_async(lambda: feed._connection is not None)
            feed._connection._transport.pause_reading()  # its loop does not come to reading any more
            talker = AgentSpec(provider="scripted", model="says it back", window=1)
            async with ensemble.worker():
                turns = [await ensemble.submit("s", "x" * 500_000, agent=talker) for _ in range(12)]
                await turns[-1].result(60)
            await wait_until_async(lambda: "overcoming of output buffer limits" in server.log)
            feed.reconnect()
            await caught_up(ensemble, "s", seen)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


async def test_a_cursor_that_is_no_longer_kept_is_a_gap_and_a_snapshot_leads_on(ensemble, redis_url):
    async with ensemble.worker():
        turn = await ensemble.submit("s", "one words:3")
        await turn.result(60)
        with Redis.from_url(redis_url) as redis:
            redis.hdel("ant:session:s", "ends")  # as an older release leaves it
            redis.xtrim("ant:events:s", maxlen=2, approximate=False)
        with pytest.raises(StreamGap) as gap:
            await anext(ensemble.client.subscribe("s", 1))
        assert gap.value.cursor == 1
        assert gap.value.message.startswith("Events after 1 are no longer kept")
        with pytest.raises(
            StreamGap, match=r"^There is no event 99999; the session's last event is \d+: take"
        ):
            await anext(ensemble.client.subscribe("s", 99999))
        snapshot = await ensemble.client.snapshot("s")
        seen = []
        reader = asyncio.create_task(collect(ensemble.client, "s", seen, snapshot.cursor))
        after = await ensemble.submit("s", "two")
        await after.result(60)
        await wait_until_async(lambda: seen and seen[-1].terminal)
        assert [event.seq for event in seen] == list(range(snapshot.cursor + 1, seen[-1].seq + 1))
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


@our_side
async def test_many_sessions_are_followed_over_one_connection(ensemble, redis_url):
    async with ensemble.worker():
        seen = {f"s{i}": [] for i in range(60)}
        readers = [
            asyncio.create_task(collect(ensemble.client, name, events)) for name, events in seen.items()
        ]
        turns = [await ensemble.submit(name, "hello words:3") for name in seen]
        for turn in turns:
            await turn.result(60)
        for name, events in seen.items():
            await caught_up(ensemble, name, events)
        with Redis.from_url(redis_url) as redis:
            # the client's and the worker's
            await wait_until_async(lambda: len(redis.client_list("pubsub")) == 2, 5, "two connections listen")
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def types_of(turn, seen):
    async for event in turn.stream():
        seen.append(event.type)


@pytest.mark.parametrize("state", ["delayed", "waiting", "running"])
async def test_a_turn_is_read_along_though_what_came_before_it_is_no_longer_kept(state, ensemble, redis_url):
    first = await ensemble.submit("s", "one words:3 gate:first")
    delay = 3600 if state == "delayed" else None
    turn = await ensemble.submit("s", "two words:2 gate:g", delay=delay)
    with Redis.from_url(redis_url) as redis:
        async with ensemble.worker():
            await ensemble.waits("first")
            redis.xtrim("ant:events:s", maxlen=1, approximate=False)
            ensemble.stage.open("first")
            if state == "delayed":
                await first.result(60)
            if state == "running":
                await ensemble.waits("g")
            seen = []
            reader = asyncio.create_task(types_of(turn, seen))
            cell = ensemble.client.connections.cell_of_session("s")
            channel = cell.keys.live(cell.database, "s")
            await wait_until_async(lambda: reader.done() or redis.pubsub_numsub(channel)[0][1] == 1)
            if state == "delayed":
                redis.zadd("ant:due", {turn.id: 1})
            ensemble.stage.open("g")
            await turn.result(60)
            await asyncio.wait_for(reader, patience(60))
    own = [event for event in seen if event != "text_delta"]
    expected = ["turn_started", "step_finished", "turn_finished"]
    assert own == (["turn_queued", *expected] if state == "delayed" else expected)
