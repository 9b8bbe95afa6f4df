"""What a chunk costs in this process, from its bytes to the delta that is to leave: instructions and memory.

Counts, because seconds would flake. They are Python's own: what the processor executes can be counted only where the
machine lends its counters, and most virtual machines do not. A bound is what it takes today and a little more, for
other versions of Python: who needs more says so here, who needs less lowers it.
"""

import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from support.own_memory import in_use

from antiphon.input.ids import Fence, SessionId, TurnId
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.loop.step_events import StepEvents
from antiphon_worker.process.lease import Lease
from antiphon_worker.process.publisher import Publisher, TurnSink
from antiphon_worker.providers.http.connection import Options
from antiphon_worker.providers.http.http1 import Http1Connection
from antiphon_worker.providers.openai_chat.stream import ChatDecoder
from antiphon_worker.providers.stream.increments import _Body
from antiphon_worker.providers.stream.sse import EventSplitter

NUMBER = 500
# From the bytes of a chunk to a delta in the sink.
MOST_INSTRUCTIONS_A_CHUNK = 190
# The same from where the loop hands over what it has read.
MOST_INSTRUCTIONS_FROM_THE_SOCKET = 295
# What stays until the turn ends (its text), and what is there at the most meanwhile.
MOST_BLOCKS_A_CHUNK = 1.5
MOST_BYTES_A_CHUNK = 110.0

CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    b'{"content":" word %06d"},"logprobs":null,"finish_reason":null}]}\n\n'
)


class Way:
    """Splitter, decoder and sink of one turn, as they stand behind each other in the worker."""

    def __init__(self) -> None:
        turn = ClaimedTurn(
            SessionId("s"), TurnId("t"), Fence("1-a"), "", None, None, None, "", b"{}", 1, 1, 0, 0, 1, "q", [], [], 0
        )  # fmt: skip
        lease = Lease(turn.session_id, turn.turn_id, turn.fence, time.monotonic() + 600)
        self.sink = TurnSink(turn, lease, Publisher(Cell(open_redis("redis://localhost:1"))))
        self._splitter, self._decoder = EventSplitter(), ChatDecoder("p", "m")
        self._outlet = StepEvents(1, "p", self.sink)

    def carry(self, first: int, number: int = NUMBER) -> None:
        """Take so many chunks."""
        for index in range(first, first + number):
            for name, data in self._splitter.feed(CHUNK % index):
                self._decoder.event(name, data, self._outlet)

    def leave(self) -> None:
        """Publish what is in the sink, and have it answered."""
        assert self.sink.next_emit() is not None
        assert self.sink.answer("")


@pytest.fixture
def way():
    way = Way()
    way.carry(0)
    way.leave()
    return way


def test_a_chunk_takes_few_instructions(way):
    assert instructions(lambda: way.carry(NUMBER)) / NUMBER <= MOST_INSTRUCTIONS_A_CHUNK


class Open(asyncio.Transport):
    """A transport over which nothing is sent."""

    def write(self, data: object) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


async def test_a_chunk_takes_few_instructions_from_the_socket_on(way):
    connection = Http1Connection(lambda *_: None, lambda *_: None)
    connection.connection_made(Open())
    exchange = connection.begin(b"", None)
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    body = _Body(ChatDecoder("p", "m"), Options(), StepEvents(1, "p", way.sink), json=False)
    reading = asyncio.create_task(exchange.into(body.take))
    await asyncio.sleep(0)
    packets = [b"%x\r\n%b\r\n" % (len(CHUNK % index), CHUNK % index) for index in range(2 * NUMBER)]

    def carry(some: list[bytes]) -> None:
        for packet in some:
            connection.data_received(packet)

    carry(packets[:NUMBER])
    way.leave()
    assert instructions(lambda: carry(packets[NUMBER:])) / NUMBER <= MOST_INSTRUCTIONS_FROM_THE_SOCKET
    assert len(way.sink._texts) == NUMBER
    assert not reading.done(), "no task is woken for a chunk"
    reading.cancel()


def test_a_chunk_leaves_only_its_text_behind(way):
    assert min(blocks_left_by(way) for _ in range(3)) / NUMBER <= MOST_BLOCKS_A_CHUNK


def blocks_left_by(way: Way) -> int:
    """Blocks of memory that stay when chunks have passed. What other threads need meanwhile counts as well."""
    gc.collect()
    before = sys.getallocatedblocks()
    way.carry(NUMBER)
    way.leave()
    gc.collect()
    return sys.getallocatedblocks() - before


def test_chunks_that_wait_to_leave_take_little_memory(way):
    assert min(waiting_memory(way) for _ in range(3)) / NUMBER <= MOST_BYTES_A_CHUNK


def waiting_memory(way: Way) -> int:
    """Bytes that our code has in use when chunks wait. Libraries of other tests may have threads that allocate too."""
    gc.collect()
    tracemalloc.start()
    try:
        way.carry(NUMBER)
        found = in_use()
    finally:
        tracemalloc.stop()
    way.leave()
    return found


def test_the_counter_of_instructions_counts():
    def once() -> int:
        return 1 + len("a")

    def three_times() -> None:
        once(), once(), once()

    assert 2 * instructions(once) < instructions(three_times) < 10 * instructions(once)


def instructions(work: Callable[[], Any]) -> int:
    """How many instructions of Python's machine are executed."""
    count = 0

    def note(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return note

    known = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(known)
    return count
