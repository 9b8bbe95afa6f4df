"""The test vectors of docs/protocol.md against our own implementation; test_reader.py runs them in another language."""

import json
import zlib
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from antiphon import events
from antiphon.errors import AgentError, CorruptRecord, StreamGap, TurnNotFound
from antiphon.events import EventBase, Heartbeat, UnknownEvent, decode_event
from antiphon.input.ids import cell_hash, session_id, turn_id_of_key
from antiphon.input.request import decode_request
from antiphon.model import TERMINAL, Item, Response, decode_message
from antiphon.redis.cells import open_cells
from antiphon.redis.silences import FIELDS
from antiphon.redis.subscription import Subscription
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.connection.pubsub import RESYNC
from antiphon.wire.ends import missed, read_ends
from antiphon.wire.keys import Keys, rq_key
from antiphon.wire.records import ForeignJob
from antiphon_worker.rq.foreign_jobs import ForeignJobs

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
PUBLISHED = {
    one().type
    for one in vars(events).values()
    if isinstance(one, type)
    and issubclass(one, EventBase)
    and one not in (EventBase, Heartbeat, UnknownEvent)
    if not (one.__doc__ or "").startswith("Reserved:")
}


def vectors(kind):
    return pytest.mark.parametrize("vector", VECTORS[kind], ids=lambda vector: vector.get("name"))


def at_places(pairs):
    """``[seq, at]`` pairs, those that are written as a run one by one."""
    for place in pairs:
        first, last, at = place if len(place) == 3 else (place[0], *place)
        yield from ((seq, at + seq - first) for seq in range(first, last + 1))


def text_of(seq, at):
    return b'{"seq":%d,"at":%d,"type":"text_delta","text":"%d@%d"}' % (seq, at, seq, at)


def _published(what):
    return what["text"].encode() if isinstance(what, dict) else text_of(*what)


class EndOfVector(Exception):
    """The vector says no more."""


class VectorFeed:
    """What a subscription hears, step by step; before each, Redis is given what the vector says."""

    behind = ended = False

    def __init__(self, steps, cell):
        self._steps, self._cell, self._redis, self._keys = iter(steps), cell, cell.redis, cell.keys
        self._pushed = []
        self.reconnects = 0

    @asynccontextmanager
    async def listen(self, channel):
        assert channel == "ant:live:0:s"
        yield self

    async def get(self, timeout=0.0):
        for step in self._steps:
            if "log" in step:
                await self._hold(**step["log"])
            elif step["channel"] == "silence":
                await self._look()
                if self._pushed:
                    return self._pushed.pop()
            else:
                return RESYNC if step["channel"] == "subscribed" else _published(step["channel"])
        raise EndOfVector

    def push(self, message):
        self._pushed.append(message)

    def clear(self):
        """Nothing waits: each message is read before the next step."""

    async def _look(self):
        """Twice: an event without its message may be on its way the first time."""
        for _ in range(2):
            (found,) = await self._cell.fields_of_sessions(["s"], *FIELDS)
            if not self._pushed:
                self.reader.look(found)

    async def _hold(self, events, seq=None, first=None, life="1001-t1"):
        places = list(at_places(events))
        seq = seq or (places[-1][0] if places else None)
        pipe = self._redis.pipeline()
        pipe.delete(self._keys.session("s"), self._keys.events("s"))
        if seq:
            fields = {"seq": seq, "created": 1001, "life": life} | ({"first": first} if first else {})
            pipe.hset(self._keys.session("s"), mapping=fields)
            pipe.expire(self._keys.session("s"), 60)
        for place in places:
            pipe.xadd(self._keys.events("s"), {"e": text_of(*place)}, id=f"{place[0]}-0")
        pipe.expire(self._keys.events("s"), 60)
        await pipe.execute()

    def check_open(self):
        """It is never closed."""

    def reconnect(self):
        self.reconnects += 1


async def followed(subscription):
    """The events that it gives, and whether it ends with a gap."""
    delivered = []
    while True:
        try:
            event = await anext(subscription)
        except (EndOfVector, StreamGap) as end:
            return delivered, isinstance(end, StreamGap)
        delivered.append((event.seq, event.at))


@vectors("following")
async def test_a_reader_gives_each_event_once_or_says_that_some_are_missing(vector, redis_url):
    async with open_redis(redis_url) as redis:
        cell = Cell(redis)
        feed = VectorFeed(vector["steps"], cell)
        feed.reader = subscription = Subscription(cell, feed, session_id("s"), vector["cursor"])  # type: ignore[arg-type]
        delivered, gap = await followed(subscription)
        assert delivered == list(at_places(vector["delivered"]))
        assert gap == vector["gap"]
        assert feed.reconnects == vector.get("reconnects", 0)


@vectors("past")
def test_what_takes_the_place_of_events_that_are_no_longer_kept(vector):
    ends = read_ends(vector["ends"], vector["first"])
    beginning = vector.get("beginning", False)
    found = missed(ends, vector["length"], vector["cursor"], vector["before"], beginning=beginning)
    told = found and {**found._asdict(), "pieces": [[*piece] for piece in found.pieces]}
    assert told == vector["expect"]


@vectors("names")
def test_keys_and_channels_have_these_names(vector):
    keys, expected = Keys(vector["prefix"]), vector["expect"]
    session, turn, queue = vector["session"], vector["turn"], vector["queue"]
    assert expected == {
        **{name: getattr(keys, name)(session) for name in ("session", "inbox", "history", "events", "turns")},
        "turn": keys.turn(turn), "bell": keys.bell(queue), "live": keys.live(vector["database"], session),
        "job": rq_key("rq_job", turn), "rq_queue": rq_key("rq_queue", queue), "rq_failed": rq_key("rq_failed", queue),
    }  # fmt: skip


@vectors("cells")
def test_a_session_lives_on_this_cell(vector):
    cells = open_cells(vector["urls"])
    name_of = dict(zip(cells, vector["names"], strict=True))
    for session, hashed, name in vector["sessions"]:
        assert cell_hash(session) == hashed
        assert name_of[cells.of_session(session)] == name
        assert name_of[cells.of_turn(hashed + "0123456789")] == name


@vectors("keys")
def test_a_key_of_a_session_is_this_turn(vector):
    prefix = "" if vector["prefix"] == Keys().prefix else vector["prefix"]
    assert turn_id_of_key(vector["session"], vector["key"], prefix) == vector["turn"]


@vectors("submissions")
@pytest.mark.lasting_keys("rq:*")
async def test_a_submission_writes_a_job_once_and_leaves_a_known_turn_alone(vector, redis_url):
    async with open_redis(redis_url) as redis:
        keys, turn, queue = Keys(vector["prefix"]), vector["turn"], vector["queue"]
        job, entries, bell = rq_key("rq_job", turn), rq_key("rq_queue", queue), keys.bell(queue)
        assert await redis.execute_command(*vector["command"]) == 1
        [data] = await redis.hmget(job, "data")
        assert json.loads(data) == [
            "antiphon_worker.jobs.run_turn", None, [vector["session"], vector["text"], vector["options"]], {},
        ]  # fmt: skip
        assert await redis.hmget(job, "origin", "status") == [queue.encode(), b"queued"]
        assert await redis.sismember("rq:queues", entries)
        assert 0 < await redis.pttl(bell) <= 60_000
        assert await redis.execute_command(*vector["command"]) == 0
        assert await redis.lrange(entries, 0, -1) == [turn.encode()]
        assert await redis.lrange(bell, 0, -1) == [b"1"]
        await redis.delete(job, entries)
        await redis.hset(keys.turn(turn), "status", "failed")
        await redis.expire(keys.turn(turn), 60)
        assert await redis.execute_command(*vector["command"]) == 0
        assert not await redis.exists(job, entries)


@pytest.mark.parametrize("vector", VECTORS["defaults"], ids=lambda vector: vector["type"])
def test_an_event_has_these_fields_and_defaults(vector):
    event = decode_event(json.dumps({"type": vector["type"]}))
    own = {one.name for one in msgspec.structs.fields(type(event))} - {
        one.name for one in msgspec.structs.fields(EventBase)
    }
    assert {name: msgspec.to_builtins(getattr(event, name)) for name in own} == vector["fields"]


def test_there_are_fields_and_defaults_of_every_event_that_is_published():
    assert {vector["type"] for vector in VECTORS["defaults"]} == PUBLISHED


@vectors("outcomes")
async def test_what_stands_in_redis_means(vector, client):
    """A turn that no worker has taken is known by its job alone, of which only other readers know."""
    cell = next(iter(client.connections.cells))
    if vector["turn"]:
        await cell.redis.hset(cell.keys.turn(vector["id"]), mapping=vector["turn"])
        await cell.redis.expire(cell.keys.turn(vector["id"]), 60)
    assert await _outcome(client, vector) == vector["expect"]


async def _outcome(client, vector):
    try:
        turn = await client.turn(vector["id"])
        status = await turn.status()
        return {"status": status} | ({"text": (await turn.result()).text} if status in TERMINAL else {})
    except TurnNotFound as exc:
        return vector["expect"] if vector["job"] else {"error": str(exc.code)}
    except AgentError as exc:
        return {"error": str(exc.code), "message": exc.message}


@vectors("events")
def test_an_event_is_read_as(vector):
    if vector.get("error"):
        with pytest.raises(CorruptRecord):
            decode_event(vector["text"])
        return
    event = decode_event(vector["text"])
    found = {name: msgspec.to_builtins(getattr(event, name)) for name in vector["expect"]}
    assert found == vector["expect"]


def test_there_is_a_vector_for_every_event_that_is_published():
    assert {vector["expect"]["type"] for vector in VECTORS["events"] if "expect" in vector} == PUBLISHED | {
        "unknown"
    }


@vectors("messages")
def test_an_entry_of_the_history_is_read_as(vector):
    message, expected = decode_message(vector["text"]), vector["expect"]
    assert (message.role, message.text) == (expected["role"], expected["text"])
    parts = msgspec.to_builtins(message.parts)
    kinds = [
        part["item"].get("type") if isinstance(one, Item) and not one.provider else part["type"]
        for one, part in zip(message.parts, parts, strict=True)
    ]
    assert kinds == expected["parts"]


@vectors("responses")
def test_a_response_is_read_as(vector):
    found = msgspec.json.decode(vector["text"], type=Response)
    assert vector["expect"] == {
        "text": found.text, "output": found.output, "stop_reason": found.stop_reason, "model": found.model,
        "raw_stop_reason": found.raw_stop_reason, "input_tokens": found.usage.input_tokens,
        "output_tokens": found.usage.output_tokens, "messages": [message.role for message in found.messages],
        "tool_calls": [[one.name, one.arguments, one.result, one.is_error] for one in found.tool_calls],
    }  # fmt: skip


@vectors("cursors")
async def test_the_cursor_of_a_snapshot_is(vector, redis_url):
    async with open_redis(redis_url) as redis:
        cell = Cell(redis)
        fields = {"seq": vector["seq"]} if vector["seq"] else {}
        if vector.get("exists") or fields:
            await redis.hset(cell.keys.session("s"), mapping={"created": 1, **fields})
            await redis.expire(cell.keys.session("s"), 86_400)
        if vector["head"]:
            await redis.rpush(cell.keys.inbox("s"), vector["head"])
            first = {"first_seq": vector["first_seq"]} if vector["first_seq"] else {}
            await redis.hset(cell.keys.turn(vector["head"]), mapping={"session": "s", **first})
            await redis.expire(cell.keys.turn(vector["head"]), 60)
        found = (await cell.snapshot("s")).cursor if await redis.exists(cell.keys.session("s")) else 0
        assert found == vector["cursor"]


@vectors("jobs")
@pytest.mark.lasting_keys("ant:*:user-123", "ant:turn:*")
async def test_a_job_becomes_this_turn_or_fails_with_this_reason(vector, redis_url):
    data = vector["data"].encode()
    job = vector.get("id", cell_hash("user-123") + "0" * 22)
    async with open_redis(redis_url) as redis:
        cell = Cell(redis)
        await redis.hset(rq_key("rq_job", job), "data", data)
        foreign = ForeignJob(job, "antiphon", zlib.compress(data) if vector.get("zlib") else data)
        await ForeignJobs(cell, "w", lambda: open_cells(redis_url)).handle(foreign)
        if "refused" in vector:
            assert await redis.hget(rq_key("rq_job", job), "status") == b"failed"
            assert vector["refused"] in (await redis.hget(rq_key("rq_job", job), "exc_info")).decode()
            assert await redis.keys("ant:*") == []
            return
        turn = await redis.hgetall(cell.keys.turn(job))
        request = decode_request(turn[b"request"])
        schema = {"schema": request.output.schema} if request.output else {}
        assert vector["accepted"] == schema | {
            "session": turn[b"session"].decode(), "text": request.messages[0].text,
            "agent": msgspec.to_builtins(request.agent), "params": request.params, "metadata": request.metadata,
            "timeout": request.timeout,
        }  # fmt: skip
