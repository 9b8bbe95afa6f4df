"""Reading along: waiting with a time limit, heartbeats, a Redis that is away, and gaps."""

import asyncio
import gc

import pytest
from redis.asyncio import Redis
from support.eventually import patience, wait_until_async
from support.here import running_worker
from support.network import free_port
from support.proxy import Proxy

from antiphon.client import AsyncClient, Client
from antiphon.errors import StoreUnavailable, StreamGap
from antiphon.events import Heartbeat
from antiphon.input.request import AgentSpec
from antiphon.redis import connections, subscription

AGENT = AgentSpec(provider="scripted", model="any")


async def impatient(events, seconds=0.002):
    """All events up to the turn's end, read with a time limit that is over again and again."""
    seen, gave_up = [], 0
    while not seen or not seen[-1].terminal:
        try:
            seen.append(await asyncio.wait_for(anext(events), seconds))
        except TimeoutError:
            gave_up += 1
    return seen, gave_up


WAYS = {
    "subscribe": lambda client, turn: client.subscribe("s", 0),
    "stream": lambda client, turn: turn.stream(),
}


@pytest.mark.parametrize("way", WAYS)
async def test_whoever_waits_with_a_time_limit_misses_nothing(way, ensemble):
    async with ensemble.worker():
        turn = await ensemble.submit("s", "go on words:50 gate:g words:50")
        events = WAYS[way](ensemble.client, turn)
        reading = asyncio.create_task(impatient(events))
        await ensemble.waits("g")
        ensemble.stage.open("g")
        seen, gave_up = await asyncio.wait_for(reading, patience(60))
        assert gave_up > 3
        assert [e.to_json() for e in seen] == [e.to_json() for e in await ensemble.events("s")]
        await events.aclose()


@pytest.mark.one_server
@pytest.mark.parametrize("way", WAYS)
async def test_a_cancellation_at_any_step_loses_nothing(way, client, redis_url, redis_server):
    """The reader is cancelled after one loop step more each time: in all places where it waits for something."""
    async with running_worker(redis_url):
        turn = await client.submit("s", "hello", agent=AGENT)
        expected = [event.to_json() for event in [event async for event in turn.stream()]]
        for steps in range(40):
            events, seen = WAYS[way](client, turn), []
            while not seen or not seen[-1].terminal:
                waiting = asyncio.ensure_future(anext(events))
                for _ in range(steps):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
                if not waiting.cancelled():
                    seen.append(waiting.result())
                elif steps < 30:  # it cannot get that far in so few steps
                    seen.append(await asyncio.wait_for(anext(events), patience(10)))
            assert [event.to_json() for event in seen] == expected
            await events.aclose()


async def test_a_silent_session_gives_heartbeats_and_then_its_events(ensemble):
    async with ensemble.worker():
        turn = await ensemble.submit("s", "go on gate:g")
        await ensemble.seen("s", "text_delta")
        expected = list(range(1, len(await ensemble.events("s")) + 1))
        for events in (ensemble.client.subscribe("s", 0, heartbeat=0.02), turn.stream(heartbeat=0.02)):
            seen = []
            while len(seen) < len(expected):
                event = await anext(events)
                seen += [event] if not isinstance(event, Heartbeat) else []
            assert [event.seq for event in seen] == expected
            beat = await anext(events)
            assert (beat.type, beat.seq, beat.terminal) == ("heartbeat", expected[-1], False)
            assert isinstance(await anext(events), Heartbeat)
            await events.aclose()
        events = turn.stream(seen[-1].seq, heartbeat=0.02)  # its cursor goes on
        ensemble.stage.open("g")
        more = [event async for event in events if not isinstance(event, Heartbeat)]
        kept = [event.to_json() for event in await ensemble.events("s")]
        assert [event.to_json() for event in [*seen, *more]] == kept


def test_the_synchronous_client_gives_heartbeats(redis_url):
    with Client(redis_url) as client:
        turn = client.submit("s", "x", queue="nowhere")
        events = client.subscribe("s", 0, heartbeat=0.02)
        for items in (events, turn.stream(heartbeat=0.02)):
            while (event := next(items)).type == "heartbeat":  # nothing has come yet
                pass
            assert event.type == "turn_queued"
            assert [next(items).type for _ in range(2)] == ["heartbeat"] * 2
        turn.cancel()


async def test_heartbeats_go_on_while_redis_is_away(redis_url, proxy):
    async with AsyncClient(redis_url) as writer, AsyncClient(proxy.url) as client:
        turn = await writer.submit("s", "x", queue="nowhere")
        events = client.subscribe("s", 0, heartbeat=0.05)
        assert (await after_heartbeats(events)).turn_id == turn.id
        proxy.refuse()
        assert [(await anext(events)).type for _ in range(5)] == ["heartbeat"] * 5
        await turn.cancel()
        proxy.heal()
        assert (await after_heartbeats(events)).type == "turn_cancelled"
        await events.aclose()


async def after_heartbeats(events):
    """The next event that is no heartbeat. Even the first one may come after some, while the client connects."""
    while (event := await anext(events)).type == "heartbeat":
        pass
    return event


READERS = {
    "subscribe": lambda client: anext(client.subscribe("s", 0)),
    "what is new": lambda client: anext(client.subscribe("s")),
    "start": lambda client: client.subscribe("s", 0).start(),
}


@pytest.mark.parametrize("read", READERS)
async def test_a_redis_that_was_never_there_is_not_waited_for_for_ever(read, monkeypatch):
    monkeypatch.setattr(connections, "REACH_SECONDS", 0.2)
    monkeypatch.setattr(subscription, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(connections, "OUTAGE_RETRY_SECONDS", 0.05)
    async with AsyncClient(f"redis://127.0.0.1:{free_port()}/0", retries=0) as client:
        with pytest.raises(
            StoreUnavailable, match=r"never reached it, and has tried for 0\.2 s: check the URL"
        ):
            await asyncio.wait_for(READERS[read](client), patience(20))


async def test_an_impatient_reader_hears_of_it_too(monkeypatch, caplog):
    monkeypatch.setattr(connections, "REACH_SECONDS", 0.5)
    monkeypatch.setattr(subscription, "SILENCE_SECONDS", 0.05)
    async with AsyncClient(f"redis://127.0.0.1:{free_port()}/0", retries=0) as client:
        events = client.subscribe("s", 0)
        with pytest.raises(StoreUnavailable, match="never reached"):
            await impatient(events, 0.1)
    assert sum("Trying again" in line for line in caplog.messages) == 1


@pytest.mark.one_server
@pytest.mark.parametrize("reached", ["a turn was submitted", "something was followed"])
async def test_a_redis_that_was_there_is_waited_for(reached, redis_url, redis_server, monkeypatch):
    monkeypatch.setattr(connections, "REACH_SECONDS", 0.0)
    monkeypatch.setattr(subscription, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(connections, "OUTAGE_RETRY_SECONDS", 0.02)
    with Proxy(redis_server.port) as proxy:
        async with AsyncClient(redis_url) as writer, AsyncClient(proxy.url) as client:
            if reached == "a turn was submitted":
                turn = await client.submit("s", "x", queue="nowhere")
            else:
                turn = await writer.submit("s", "x", queue="nowhere")
                async with client.subscribe("s", 0) as events:
                    await anext(events)
            proxy.refuse()
            refused = proxy.accepted
            reading = asyncio.create_task(anext(client.subscribe("s", 0)))
            await wait_until_async(lambda: proxy.accepted > refused + 5 or reading.done(), 10)
            assert not reading.done()
            proxy.heal()
            assert (await asyncio.wait_for(reading, patience(60))).turn_id == turn.id
            await turn.cancel()


async def channels(url):
    async with Redis.from_url(url) as redis:
        return await redis.pubsub_channels("ant:live:*")


async def test_a_reader_that_is_left_behind_stops_listening(client, redis_url):
    turn = await client.submit("s", "x", queue="nowhere")
    async for _ in client.subscribe("s", 0):
        break
    async for _ in turn.stream():
        break
    gc.collect()
    await wait_until_async(lambda: _none(redis_url), description="nobody listens")
    await turn.cancel()


async def _none(url):
    return await channels(url) == []


async def test_closing_ends_whoever_waits(client, redis_url):
    turn = await client.submit("s", "x", queue="nowhere")
    for events in (client.subscribe("s"), turn.stream(after=1)):
        waiting = asyncio.ensure_future(anext(events))
        await wait_until_async(lambda: channels(redis_url))
        await events.aclose()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(waiting, patience(60))
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    await turn.cancel()


async def test_a_gap_is_told_again_until_the_reader_goes_on(ensemble, redis_url):
    async with ensemble.worker():
        await (await ensemble.submit("s", "one words:3")).result(60)
        async with Redis.from_url(redis_url) as redis:
            await redis.hdel("ant:session:s", "ends")  # as an older release leaves it
            await redis.xtrim("ant:events:s", maxlen=2, approximate=False)
        events = ensemble.client.subscribe("s", 1)
        for _ in range(2):
            with pytest.raises(
                StreamGap, match=r"with snapshot\('s'\) and subscribe\('s', after=snapshot.cursor\)"
            ):
                await anext(events)


async def test_a_reader_goes_on_after_the_log_has_expired_if_it_had_read_all(ensemble, redis_url):
    async with ensemble.worker():
        turn = await ensemble.submit("s", "one words:3")
        await turn.result(60)
        cursor = (await ensemble.client.snapshot("s")).cursor
        async with Redis.from_url(redis_url) as redis:
            await redis.delete("ant:events:s")
        assert [event.type async for event in turn.stream()] == ["turn_finished"]
        snapshot = await ensemble.client.snapshot("s")
        assert ([one.role for one in snapshot.messages], snapshot.cursor) == (["user", "assistant"], cursor)
        told = await anext(ensemble.client.subscribe("s", cursor - 1))
        assert (told.type, told.seq, told.messages) == ("message", cursor, snapshot.messages)
        events = ensemble.client.subscribe("s", cursor)
        await (await ensemble.submit("s", "two words:3")).result(60)
        assert (await anext(events)).seq == cursor + 1


@pytest.mark.parametrize("status", ["running", "ended"])
async def test_a_turns_stream_goes_on_over_a_gap_that_is_not_its_own(status, ensemble, redis_url):
    async with ensemble.worker():
        await (await ensemble.submit("s", "one words:3")).result(60)
        turn = await ensemble.submit("s", "two gate:g")
        await ensemble.waits("g")
        begins = int(await ensemble.field(turn, "first_seq"))
        async with Redis.from_url(redis_url) as redis:
            await redis.xtrim("ant:events:s", minid=f"{begins}-0", approximate=False)
        stream = turn.stream(after=1)
        first = await anext(stream)
        ensemble.stage.open("g")
        if status == "ended":
            await turn.result(60)
            await stream.aclose()
            stream = turn.stream(after=1)
            first = await anext(stream)
        assert (first.type, first.seq) == ("turn_started", begins)
        seen = [first, *[event async for event in stream]]
        assert [event.seq for event in seen] == list(range(begins, seen[-1].seq + 1))
        assert seen[-1].type == "turn_finished"


async def test_a_turns_stream_raises_where_its_own_events_are_missing(ensemble, redis_url):
    async with ensemble.worker():
        turn = await ensemble.submit("s", "two words:5 gate:g")
        await ensemble.waits("g")
        begins = int(await ensemble.field(turn, "first_seq"))
        async with Redis.from_url(redis_url) as redis:
            await wait_until_async(lambda: _longer(redis, begins + 3))
            await redis.xtrim("ant:events:s", maxlen=1, approximate=False)
        with pytest.raises(StreamGap, match="no longer kept"):
            await anext(turn.stream(after=begins))
        ensemble.stage.open("g")
        await turn.result(60)
        assert [event.type async for event in turn.stream(after=begins)] == ["turn_finished"]


async def _longer(redis, seq):
    return int(await redis.hget("ant:session:s", "seq")) > seq


def test_a_stream_after_the_turns_end_is_over(runtime):
    turn = runtime.agent().session("s").submit("hello")
    events = list(turn.stream())
    assert list(turn.stream(events[-1].seq)) == []
    assert list(turn.stream(str(events[-1].seq + 5))) == []
    assert [event.seq for event in turn.stream(events[0].seq)] == [event.seq for event in events[1:]]
