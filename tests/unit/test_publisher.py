"""What leaves a turn's sink, in which order, and what is sent again."""

import asyncio
import json
import time

from antiphon.errors import StoreUnavailable
from antiphon.events import ReasoningDelta, StepFinished, TextDelta, ToolCallDelta
from antiphon.ids import Fence, SessionId, TurnId
from antiphon.wire.cell import SUPERSEDED, Cell, ClaimedTurn
from antiphon.wire.connect import open_redis
from antiphon_worker.lease import Lease, Stop
from antiphon_worker.publisher import FULL_EVENTS, Publisher, TurnSink

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
    return [json.loads(one) for one in emit.bodies]


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


class Unreliable:
    """A cell whose first emit fails, and which says what has left."""

    def __init__(self) -> None:
        self.left: asyncio.Queue[list[str]] = asyncio.Queue()
        self._calls = 0

    async def emit(self, emits):
        self._calls += 1
        texts = [json.loads(body)["text"] for one in emits for body in one.bodies]
        self.left.put_nowait(texts)
        return [StoreUnavailable("away") if self._calls == 1 else "" for _ in emits]


async def test_what_came_while_an_emit_failed_leaves_after_it_without_being_asked(monkeypatch):
    monkeypatch.setattr("antiphon_worker.publisher.RETRY_SECONDS", 1000.0)
    cell = Unreliable()
    publisher = Publisher(cell)  # type: ignore[arg-type]
    lease = Lease(TURN.session_id, TURN.turn_id, TURN.fence, time.monotonic() + 60)
    sink = TurnSink(TURN, lease, publisher)
    running = asyncio.ensure_future(publisher.run())
    async with asyncio.timeout(10):
        sink.text(1, "one")
        assert await cell.left.get() == ["one"]
        sink.text(1, "two")
        sink.text(1, " more")
        assert await cell.left.get() == ["one"]
        assert await cell.left.get() == ["two more"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
