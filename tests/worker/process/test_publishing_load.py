"""How many sends many streams cost, and how late their deltas are, counted in a time that passes only here."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import selectors
import types
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from antiphon.input.ids import Fence, SessionId, TurnId
from antiphon.wire.records import ClaimedTurn, Emit
from antiphon_worker.process import publisher, windows
from antiphon_worker.process.lease import Lease
from antiphon_worker.process.publisher import Publisher, TurnSink

ANSWER_SECONDS = 0.002
PACE_SECONDS = 0.02


class Passing(selectors.DefaultSelector):
    """A selector that does not wait: the time passes instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


async def passing(seconds: float) -> None:
    """Let this much of the time of the loop pass."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, over.set_result, None)
    await over


class Counting:
    """A cell that answers each emit after a moment, and notes the texts of each session with the time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.sends = 0
        self.sent_at: list[float] = []
        self.reads = 0
        self.late: dict[str, list[float]] = {}  # by session, how late its pieces were sent

    async def emit(self, emits: Sequence[Emit]) -> list[str]:
        self.sends += len(emits)
        self.sent_at += [self._now()] * len(emits)
        for one in emits:
            for body in one.bodies:
                for said in json.loads(body)["text"].split():
                    self.late.setdefault(one.session_id, []).append(self._now() - float(said))
        await passing(ANSWER_SECONDS)
        return [""] * len(emits)


class Model:
    """The connection to a model, of which the publisher decides when it is read."""

    def __init__(self, sink: TurnSink) -> None:
        self.reads = 0
        self._sink = sink
        self._waits = False
        self._unread = ""
        sink.read_from(self)

    def say(self, text: str) -> None:
        self._unread += text
        if not self._waits:
            self._read()

    def pause(self) -> None:
        self._waits = True

    def resume(self) -> None:
        self._waits = False
        if self._unread:
            self._read()

    def _read(self) -> None:
        self.reads += 1
        said, self._unread = self._unread, ""
        for piece in said.split():
            self._sink.text(1, f"{piece} ")


def sink_of(session: str, of: Publisher) -> TurnSink:
    known = SessionId(session), TurnId(session), Fence("1-a")
    turn = ClaimedTurn(*known, "", None, None, None, "", b"{}", 1, 1, 0, 0, 1, "q", [], [], 0)
    return TurnSink(turn, Lease(turn.session_id, turn.turn_id, turn.fence, 1e9), of)


def streamed(
    monkeypatch: pytest.MonkeyPatch, number: int, seconds: float, *, together: bool = False
) -> Counting:
    """Let this many sessions stream at 50 chunks/s, begun at different moments or ``together``."""
    selector = Passing()
    loop = asyncio.SelectorEventLoop(selector)
    monkeypatch.setattr(loop, "time", lambda: selector.now)
    for module in (publisher, windows):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: selector.now))
    cell = Counting(lambda: selector.now)

    async def stream() -> None:
        sending = Publisher(cell)  # type: ignore[arg-type]
        running = asyncio.create_task(sending.run())
        between = 0.0 if together else PACE_SECONDS / number
        models = [Model(sink_of(f"s{n}", sending)) for n in range(number)]
        chunks = [(between * n, n, model) for n, model in enumerate(models)]
        for counter in itertools.count(number):
            at, _, model = heapq.heappop(chunks)
            if at > seconds:
                break
            await passing(at - selector.now)
            model.say(f"{selector.now} ")
            heapq.heappush(chunks, (at + PACE_SECONDS, counter, model))
        await passing(1)
        cell.reads = sum(model.reads for model in models)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    try:
        loop.run_until_complete(stream())
    finally:
        loop.close()
    return cell


def test_few_streams_send_each_delta_at_once(monkeypatch):
    cell = streamed(monkeypatch, 100, 1.0)
    assert cell.sends == sum(map(len, cell.late.values())) == pytest.approx(5_000, rel=0.03)
    assert max(map(max, cell.late.values())) < 0.01
    assert cell.reads == cell.sends


def test_many_streams_join_their_deltas_and_keep_their_first_ones_quick(monkeypatch):
    cell = streamed(monkeypatch, 800, 1.0)
    pieces = sum(map(len, cell.late.values()))
    assert pieces == pytest.approx(40_000, rel=0.03)
    assert cell.sends < 0.55 * pieces
    assert cell.reads < 1.05 * cell.sends
    assert max(late[0] for late in cell.late.values()) < 0.01
    assert max(map(max, cell.late.values())) < 0.045


def test_the_window_grows_before_the_most_sends_a_second_are_reached(monkeypatch):
    sends = {number: streamed(monkeypatch, number, 1.0).sends for number in (200, 300, 500)}
    assert sends[200] == pytest.approx(10_000, rel=0.03)
    assert max(sends.values()) < 1.1 * windows.SENDS_A_SECOND


def test_many_streams_that_begin_together_soon_send_one_after_the_other(monkeypatch):
    """Calls that come together wait for each other; without an effort, they would do so again after each window."""
    cell = streamed(monkeypatch, 800, 1.0, together=True)
    sends = Counter(int(at / 0.005) for at in cell.sent_at if 0.5 < at < 0.9)
    assert max(sends.values()) < 2 * sum(sends.values()) / 80
    assert max(map(max, cell.late.values())) < 3 * windows.LONGEST_WINDOW_SECONDS
