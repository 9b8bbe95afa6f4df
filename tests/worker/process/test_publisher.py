"""What leaves a turn's sink, in which order, and what is sent again."""

import asyncio
import json
import time
from collections import Counter
from contextlib import asynccontextmanager

import msgspec
import pytest
from support.eventually import patience, wait_until_async
from support.strict_json import with_distinct_names

from antiphon.errors import StoreUnavailable
from antiphon.events import ReasoningDelta, StepFinished, TextDelta, ToolCallDelta
from antiphon.input.ids import Fence, SessionId, TurnId
from antiphon.wire.cell import SUPERSEDED, Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.process.lag import Lag
from antiphon_worker.process.lease import Lease, Stop
from antiphon_worker.process.publisher import EMIT_AT_ONCE, FULL_EVENTS, Publisher, TurnSink

TURN = ClaimedTurn(
    SessionId('s"1'),
    TurnId("t1"),
    Fence("7-abc"),
    "",
    None,
    None,
    None,
    "",
    b"{}",
    2,
    3,
    0,
    0,
    1,
    "q",
    [],
    [],
    0,
)


def sink_of(seconds: float = 60.0) -> TurnSink:
    lease = Lease(TURN.session_id, TURN.turn_id, TURN.fence, time.monotonic() + seconds)
    return TurnSink(TURN, lease, Publisher(Cell(open_redis("redis://localhost:1"))))


def bodies(sink: TurnSink) -> list[dict]:
    emit = sink.next_emit()
    assert emit is not None
    return [json.loads(one, object_pairs_hook=with_distinct_names) for one in emit.bodies]


async def test_pieces_of_one_delta_are_joined_and_others_keep_their_order():
    sink = sink_of()
    for event in (
        TextDelta(step=1, text="He"), TextDelta(step=1, text="llo \U0001f600"), ReasoningDelta(step=1, text="hm"),
        TextDelta(step=1, text="!"), ToolCallDelta(step=1, call_id="c1", name="look", arguments=""),
        ToolCallDelta(step=1, call_id="c1", arguments='{"a"'), ToolCallDelta(step=1, call_id="c1", arguments=":1}"),
        ToolCallDelta(step=1, call_id="c2", arguments="x"), TextDelta(step=2, text="?"),
    ):  # fmt: skip
        sink.put(event)
    found = [
        (b["type"], b.get("text", b.get("arguments", "")), b.get("call_id"), b["step"]) for b in bodies(sink)
    ]
    assert found == [
        ("text_delta", "Hello \U0001f600", None, 1),
        ("reasoning_delta", "hm", None, 1),
        ("text_delta", "!", None, 1),
        ("tool_call_delta", "", "c1", 1),
        ("tool_call_delta", '{"a":1}', "c1", 1),
        ("tool_call_delta", "x", "c2", 1),
        ("text_delta", "?", None, 2),
    ]


async def test_every_body_says_whose_it_is_and_leaves_seq_and_time_to_the_script():
    sink = sink_of()
    sink.put(TextDelta(step=1, text="a"))
    sink.put(StepFinished(step=1, model="m"))
    for one in bodies(sink):
        assert (one["session_id"], one["turn_id"], one["run"], one["attempt"]) == ('s"1', "t1", 2, 3)
        assert not {"seq", "at"} & set(one)


async def test_an_emit_that_failed_is_sent_again_unchanged_before_anything_newer():
    sink = sink_of()
    sink.put(TextDelta(step=1, text="one"))
    first = sink.next_emit()
    assert not sink.answer(StoreUnavailable("away"))
    sink.put(TextDelta(step=1, text="two"))
    assert sink.next_emit() is first
    assert sink.answer("")
    second = sink.next_emit()
    assert second is not None
    assert first is not None
    assert second.batch == first.batch + 1
    assert json.loads(second.bodies[0])["text"] == "two"
    assert sink.answer("")
    assert sink.next_emit() is None


async def test_settling_waits_for_the_emit_under_way_and_takes_the_rest():
    sink = sink_of()
    sink.put(TextDelta(step=1, text="one"))
    sink.next_emit()
    sink.put(TextDelta(step=1, text="two"))
    settling = asyncio.ensure_future(sink.settle())
    await asyncio.sleep(0)
    assert not settling.done()
    sink.answer("")
    assert [json.loads(one)["text"] for one in await settling] == ["two"]


async def test_a_superseded_turn_waits_for_nothing():
    sink = sink_of()
    sink.put(TextDelta(step=1, text="one"))
    sink.next_emit()
    sink.lease.on_stop(sink.release)
    settling = asyncio.ensure_future(sink.settle())
    await asyncio.sleep(0)
    sink.answer(SUPERSEDED)
    await settling
    assert sink.lease.stop is Stop.SUPERSEDED


async def test_a_stop_word_in_the_answer_cancels_the_turn():
    sink = sink_of()
    sink.put(TextDelta(step=1, text="one"))
    sink.next_emit()
    sink.answer("no longer wanted")
    assert (sink.lease.stop, sink.lease.stop_reason) == (Stop.CANCELLED, "no longer wanted")


async def test_a_sink_is_full_before_it_grows_without_bound_and_empties_with_an_answer():
    sink = sink_of()
    for n in range(FULL_EVENTS + 1):
        sink.put(StepFinished(step=n + 1))
    assert sink.full
    draining = asyncio.ensure_future(sink.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    sink.next_emit()
    sink.answer("")
    await draining
    assert not sink.full


class Scripted:
    """A cell that says what has left, answers when the test lets it, and refuses sessions so many times."""

    def __init__(self, **refusals: int) -> None:
        self.left: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.go = asyncio.Event()
        self.go.set()
        self._refusals = Counter(refusals)

    async def emit(self, emits):
        self.left.put_nowait(
            {one.session_id: "".join(json.loads(body)["text"] for body in one.bodies) for one in emits}
        )
        await self.go.wait()
        return [self._answer(one.session_id) for one in emits]

    def _answer(self, session: str) -> str | Exception:
        self._refusals[session] -= 1
        return StoreUnavailable("away") if self._refusals[session] >= 0 else ""


@asynccontextmanager
async def publishing(cell: Scripted):
    """A publisher that runs, and how a session gets its sink."""
    publisher = Publisher(cell)  # type: ignore[arg-type]

    def sink(session: str) -> TurnSink:
        turn = msgspec.structs.replace(TURN, session_id=SessionId(session))
        return TurnSink(
            turn, Lease(turn.session_id, turn.turn_id, turn.fence, time.monotonic() + 60), publisher
        )

    running = asyncio.ensure_future(publisher.run())
    try:
        async with asyncio.timeout(patience(10)):
            yield publisher, sink
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def end_while_under_way(cell: Scripted, publisher: Publisher, over: TurnSink, *unsent: str) -> None:
    """End a turn whose first words are under way; they are answered afterwards."""
    cell.go.clear()
    over.text(1, "one")
    assert await cell.left.get() == {over.turn.session_id: "one"}
    for text in unsent:
        over.text(1, text)
    publisher.forget(over)
    cell.go.set()


async def test_what_came_while_an_emit_failed_leaves_after_it(monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.publisher.RETRY_SECONDS", 0.0)
    cell = Scripted(s=1)
    async with publishing(cell) as (_, sink_for):
        sink = sink_for("s")
        cell.go.clear()
        sink.text(1, "one")
        assert await cell.left.get() == {"s": "one"}
        sink.text(1, "two")
        sink.text(1, " more")
        cell.go.set()
        assert await cell.left.get() == {"s": "one"}
        assert await cell.left.get() == {"s": "two more"}


async def test_after_a_silence_the_first_delta_waits_for_nobody(monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.publisher.GATHER_SECONDS", 1000.0)
    cell = Scripted()
    async with publishing(cell) as (_, sink_for):
        sink_for("s").text(1, "one")
        assert await cell.left.get() == {"s": "one"}


async def test_after_a_call_the_next_one_waits_for_others(monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.publisher.GATHER_SECONDS", 1000.0)
    cell = Scripted()
    async with publishing(cell) as (_, sink_for):
        one, two = sink_for("one"), sink_for("two")
        one.text(1, "a")
        assert await cell.left.get() == {"one": "a"}
        two.text(1, "b")
        for _ in range(10):
            await asyncio.sleep(0)
        assert cell.left.empty()


async def test_all_who_wait_leave_in_calls_of_limited_size():
    cell = Scripted()
    async with publishing(cell) as (_, sink_for):
        for n in range(EMIT_AT_ONCE + 2):
            sink_for(f"s{n}").text(1, "one")
        assert await cell.left.get() == {f"s{n}": "one" for n in range(EMIT_AT_ONCE)}
        assert list(await cell.left.get()) == [f"s{EMIT_AT_ONCE}", f"s{EMIT_AT_ONCE + 1}"]


async def test_a_session_that_is_not_answered_keeps_nobody_waiting_but_itself(monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.publisher.GATHER_SECONDS", 0.0)
    cell = Scripted()
    async with publishing(cell) as (_, sink_for):
        slow, quick = sink_for("slow"), sink_for("quick")
        cell.go.clear()
        slow.text(1, "one")
        assert await cell.left.get() == {"slow": "one"}
        slow.text(1, "two")
        slow.text(1, " and three")
        quick.text(1, "meanwhile")
        assert await cell.left.get() == {"quick": "meanwhile"}
        cell.go.set()
        assert await cell.left.get() == {"slow": "two and three"}


async def test_within_its_window_a_session_does_not_speak_again(monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.publisher.GATHER_SECONDS", 0.0)
    monkeypatch.setattr("antiphon_worker.process.windows.WINDOW_SECONDS", 1000.0)
    cell = Scripted()
    async with publishing(cell) as (_, sink_for):
        sink, other = sink_for("s"), sink_for("other")
        sink.text(1, "one")
        assert await cell.left.get() == {"s": "one"}
        sink.text(1, "two")
        other.text(1, "heard")
        assert await cell.left.get() == {"other": "heard"}
        assert [json.loads(one)["text"] for one in await sink.settle()] == ["two"]


class Source:
    """The connection from which an answer is read, with what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def pause(self) -> None:
        self.asked.append("pause")

    def resume(self) -> None:
        self.asked.append("resume")


@pytest.mark.parametrize(
    ("sends_a_second", "pieces", "asked"),
    [
        pytest.param(100, 2, ["pause", "resume"], id="a crowded process lets several pieces come together"),
        pytest.param(100, 1, ["resume"], id="a single piece is not waited for"),
        pytest.param(12_500, 2, ["resume"], id="a process with few streams reads at once"),
    ],
)
async def test_an_answer_waits_in_its_socket_during_a_long_window(monkeypatch, sends_a_second, pieces, asked):
    monkeypatch.setattr("antiphon_worker.process.windows.SENDS_A_SECOND", sends_a_second)
    monkeypatch.setattr("antiphon_worker.process.windows.WINDOW_SECONDS", 0.001)
    cell, source = Scripted(), Source()
    async with publishing(cell) as (_, sink_for):
        sink = sink_for("s")
        sink.read_from(source)
        for _ in range(pieces):
            sink.text(1, "a")
        await cell.left.get()
        await wait_until_async(lambda: "resume" in source.asked)
        assert source.asked == asked


async def test_an_answer_waits_in_its_socket_while_redis_is_away(monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.windows.SENDS_A_SECOND", 10)
    monkeypatch.setattr("antiphon_worker.process.publisher.RETRY_SECONDS", 0.001)
    cell, source = Scripted(s=2), Source()
    async with publishing(cell) as (_, sink_for):
        sink = sink_for("s")
        sink.read_from(source)
        sink.text(1, "one ")
        sink.text(1, "two")
        for _ in range(3):
            assert await cell.left.get() == {"s": "one two"}
        await sink.flushed()
        await wait_until_async(lambda: source.asked == ["pause", "resume"] * 3)


async def test_nothing_leaves_of_a_turn_that_is_over(monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.publisher.GATHER_SECONDS", 0.0)
    monkeypatch.setattr("antiphon_worker.process.windows.WINDOW_SECONDS", 0.0)
    cell = Scripted()
    async with publishing(cell) as (publisher, sink_for):
        over, other = sink_for("over"), sink_for("other")
        await end_while_under_way(cell, publisher, over, "two")
        await wait_until_async(lambda: over.unanswered is None)
        other.text(1, "heard")
        assert await cell.left.get() == {"other": "heard"}
        assert cell.left.empty()


async def test_a_turn_past_its_deadline_says_nothing_until_its_lease_is_renewed(monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.publisher.GATHER_SECONDS", 0.0)
    monkeypatch.setattr("antiphon_worker.process.publisher.RETRY_SECONDS", 0.001)
    cell = Scripted()
    async with publishing(cell) as (_, sink_for):
        frozen, other = sink_for("frozen"), sink_for("other")
        frozen.lease.mono_deadline = 0.0
        frozen.text(1, "one")
        other.text(1, "heard")
        assert await cell.left.get() == {"other": "heard"}
        frozen.lease.mono_deadline = time.monotonic() + 60
        assert await cell.left.get() == {"frozen": "one"}


async def test_an_outage_has_one_line_at_its_begin_and_one_at_its_end(monkeypatch, caplog):
    """Whoever is served while another session is still refused ends nothing."""
    monkeypatch.setattr("antiphon_worker.process.publisher.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("antiphon_worker.process.publisher.GATHER_SECONDS", 0.0)
    caplog.set_level("INFO", "antiphon.publisher")
    cell = Scripted(one=1, two=3)
    async with publishing(cell) as (_, sink_for):
        one, two = sink_for("one"), sink_for("two")
        one.text(1, "a")
        two.text(1, "b")
        await asyncio.gather(one.flushed(), two.flushed())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_what_became_of_a_turn_that_is_over_is_no_outage(caplog):
    caplog.set_level("INFO", "antiphon.publisher")
    cell = Scripted(over=1)
    async with publishing(cell) as (publisher, sink_for):
        over, other = sink_for("over"), sink_for("other")
        await end_while_under_way(cell, publisher, over)
        other.text(1, "heard")
        await other.flushed()
    assert caplog.records == []


def seen(*delays: float, every: float = 0.03) -> tuple[Lag, float]:
    lag, now = Lag(), 100.0
    for delay in delays:
        now += every
        lag.note(now, delay)
    return lag, now


def test_nothing_seen_is_no_overload():
    assert not Lag().high(100.0)


def test_one_long_delay_is_no_overload_but_many_are():
    lag, now = seen(*[0.005] * 20, 0.2)
    assert not lag.high(now)
    lag, now = seen(*[0.005] * 20, *[0.2] * 5)
    assert lag.high(now)


def test_a_redis_that_is_far_away_is_no_overload():
    lag, now = seen(*[0.15] * 50)
    assert not lag.high(now)
    lag, now = seen(*[0.15] * 50, *[0.6] * 10)
    assert lag.high(now)


def test_it_ends_with_short_delays_and_with_silence():
    lag, now = seen(0.005, *[0.3] * 20, *[0.005] * 12)
    assert not lag.high(now)
    lag, now = seen(0.005, *[0.3] * 20)
    assert lag.high(now)
    assert not lag.high(now + 1.5)
    lag.note(now + 1.5, 0.1)
    assert not lag.high(now + 1.5)
