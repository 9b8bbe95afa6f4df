"""Records that are not what was written: whoever reads them is told so with an error of ours, and nothing else."""

import asyncio
from contextlib import suppress

import pytest
from redis.asyncio import Redis
from support.here import running_worker

from antiphon.client import AsyncClient
from antiphon.errors import AgentError, CorruptRecord, NotFound, StreamGap, TurnFailed
from antiphon.input.ids import SessionId
from antiphon.input.request import AgentSpec
from antiphon.redis.deployment import cell_states
from antiphon.redis.trees import graph_of

DEEP = b"[" * 200_000
DEEP_EVENT = b'{"seq":2,"at":1,"type":"text_delta","text":' + DEEP
BODIES = {
    "empty": b"", "no JSON": b"x", "deep": DEEP, "a deep event": DEEP_EVENT, "no UTF-8": b'{"seq":2,"at":1,"x":"\xff"}',
    "a list": b"[]", "null": b"null", "a number": b"1" * 5000, "no type": b'{"seq":2,"at":1}',
    "a wrong type": b'{"seq":2,"at":1,"type":"turn_finished","response":7}', "cut": b'{"seq":2,"at":1,"type":"turn_fin',
    "another seq": b'{"seq":"two","at":1,"type":"text_delta","text":"x"}',
    "an unknown that is broken": b'{"seq":2,"type":"new"',
    "surrogates": b'{"seq":2,"at":1,"type":"text_delta","text":"\\ud800"}',
}  # fmt: skip
AGENT = AgentSpec(provider="scripted", model="any")


async def read_everything(client, turn, last):
    """What each reader gives: an error of ours, or None where it found nothing wrong up to the event ``last``."""

    async def first(events):
        async for each in events:
            if getattr(each, "seq", 0) == last:
                return

    session = client.session("s")
    readers = {
        "subscribe": lambda: first(client.subscribe("s", after=0)), "stream": lambda: first(turn.stream()),
        "result": lambda: turn.result(1), "status": turn.status, "turn": lambda: client.turn(turn.id),
        "snapshot": lambda: client.snapshot("s"), "messages": session.messages,
        "to_dict": session.to_dict, "session status": session.status,
        "turns": lambda: first(client.turns("s")), "sessions": lambda: first(client.sessions()),
    }  # fmt: skip
    found = {}
    for name, read in readers.items():
        try:
            async with asyncio.timeout(0.3):
                await read()
        except TimeoutError:  # it reads on
            found[name] = None
        except AgentError as exc:
            found[name] = exc
        else:
            found[name] = None
    return found


def damages():
    for name, body in BODIES.items():
        yield pytest.param(["XADD", "ant:events:s", "9000-0", "e", body], "seq", id=f"event: {name}")
        yield pytest.param(["RPUSH", "ant:history:s", body], "", id=f"message: {name}")
        yield pytest.param(["HSET", "TURN", "response", body], "", id=f"response: {name}")
        for field in ("agent", "variables", "metadata"):
            yield pytest.param(["HSET", "ant:session:s", field, body], "", id=f"{field}: {name}")
    yield pytest.param(["XADD", "ant:events:s", "9000-0", "other", "x"], "seq", id="event: no field of ours")
    for field in ("session", "status"):
        yield pytest.param(["HDEL", "TURN", field], "", id=f"turn without {field}")
    for field in (
        "run",
        "attempt",
        "queued_seq",
        "last_seq",
        "ended_at",
        "session",
        "status",
        "error",
        "error_code",
    ):
        for value in (b"abc", b"\xff", b"1e400", b"9" * 5000):
            yield pytest.param(["HSET", "TURN", field, value], "", id=f"turn {field}={value[:5]}")
    for field in (
        "seq",
        "first",
        "created",
        "updated",
        "tenant",
        "queue",
        "system",
        "summary",
        "children",
        "window",
    ):
        for value in (b"abc", b"\xff", b"-1", b"9" * 5000):
            yield pytest.param(["HSET", "ant:session:s", field, value], "", id=f"session {field}={value[:5]}")
    for kind in ("ant:session:s", "ant:history:s", "ant:events:s", "ant:turns:s", "ant:inbox:s", "TURN"):
        yield pytest.param(["SET", kind, "x"], "", id=f"{kind} is text")
    yield pytest.param(["HSET", "ant:session:s", b"\xff", "x"], "", id="a field that is no UTF-8")
    yield pytest.param(["RPUSH", "ant:inbox:s", b"\xff"], "", id="a turn that is no UTF-8")


@pytest.mark.one_server
async def test_every_reader_says_what_it_cannot_read(redis_url):
    """All damages in one test, because what they damage is made in a moment, and a server takes longer."""
    wrong = []
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        async with running_worker(redis_url):
            turn = await client.submit("s", "hello", agent=AGENT, tenant="acme")
            await turn.result(60)
        last = (await client.snapshot("s")).cursor
        whole = {key: await redis.dump(key) for key in await redis.keys("ant:*")}
        for case in damages():
            command, raise_seq = case.values
            await redis.flushdb()
            for key, value in whole.items():
                await redis.restore(key, 0, value)
            await redis.execute_command(*[f"ant:turn:{turn.id}" if one == "TURN" else one for one in command])
            if raise_seq:
                await redis.hset("ant:session:s", "seq", 9000)
            try:
                found = await read_everything(client, turn, 9000 if raise_seq else last)
            except Exception as exc:  # noqa: BLE001 - this is what the test looks for
                wrong.append(f"{case.id}: {type(exc).__name__}: {exc!s:.100}")
                continue
            wrong += [
                f"{case.id}, {name}: {type(exc).__name__}: {exc!s:.100}"
                for name, exc in found.items()
                if exc is not None and not isinstance(exc, CorruptRecord | NotFound | StreamGap | TurnFailed)
            ]
        await redis.flushdb()
    assert not wrong, "\n".join(wrong)


KINDS = {
    "text": ("SET", "x"),
    "list": ("RPUSH", "x"),
    "set": ("SADD", "x"),
    "stream": ("XADD", "*", "a", "b"),
}


@pytest.mark.one_server
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", range(5))
async def test_a_turn_of_another_type_hurts_that_turn_alone(redis_url, kind, which):
    """Whatever reads the whole session, or all sessions, goes on without it."""
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        session, turns = client.session("s", tenant="acme"), []
        async with running_worker(redis_url):
            for text in ("one", "two"):
                turns.append(await client.submit("s", text, agent=AGENT, tenant="acme"))
                await turns[-1].result(60)
        turns += [await client.submit("s", text, tenant="acme") for text in ("three", "four")]
        turns.append(await client.submit("s", "five", tenant="acme", delay=60))
        pending = {one.id for one in turns[2:]}
        bad = turns.pop(which)
        (cell,) = client.connections.cells
        await redis.delete(cell.keys.turn(bad.id))
        await redis.execute_command(KINDS[kind][0], cell.keys.turn(bad.id), *KINDS[kind][1:])

        whole = await cell.snapshot(SessionId("s"), 0, -1, "pending failed")
        assert {one.turn_id for one in whole.turns} == pending - {bad.id}
        assert len((await client.snapshot("s", tenant="acme")).messages) == len(await session.messages()) == 4
        assert len((await session.to_dict())["messages"]) == 4
        with suppress(CorruptRecord):  # it is that of the damaged turn
            await session.status()
        listed = [one async for one in client.turns("s", tenant="acme")]
        assert [one.id for one in listed] == [one.id for one in reversed(turns)]
        assert {(await one.info()).turn_id for one in listed} == {one.id for one in turns}
        assert [one.session_id async for one in client.sessions()] == ["s"]
        assert [one async for one in client.failed()] == [one async for one in client.waiting()] == []
        assert [one.turn_id async for one in client.due()] == [one.id for one in turns[-1:] if which < 4]
        assert (await graph_of(cell, SessionId("s"))).count("unreadable") == 1
        assert len((await session.recording()).turns) == (2 if which > 1 else 1)
        assert [state.sessions for state in await cell_states([redis_url], "ant")] == [1]
        assert await session.fork("t")
        for one in turns:
            await one.cancel()
        if bad.id in pending and which < 4:
            with pytest.raises(CorruptRecord):  # it is in the way of what comes after it
                await session.delete()
            await redis.flushdb()
            return
        assert await session.delete()
        left = {key for key in await redis.keys("ant:*") if key.endswith((b":s", bad.id.encode()))}
        assert left <= {b"ant:session:s"}
        await redis.flushdb()
