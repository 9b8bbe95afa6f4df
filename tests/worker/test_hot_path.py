"""What a chunk costs in this process, from its bytes to the delta that is to leave: instructions and memory.

Counts, because seconds would flake. They are Python's own: what the processor executes can be counted only where the
machine lends its counters, and most virtual machines do not. A bound is what it takes today and a little more, for
other versions of Python: who needs more says so here, who needs less lowers it.
"""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from support.chunks import CHUNK, NUMBER, warm_way
from support.memory_use import blocks_that_chunks_leave, bytes_of_waiting_chunks, measured

from antiphon_worker.loop.step_events import StepEvents
from antiphon_worker.providers.http.connection import Options
from antiphon_worker.providers.http.http1 import Http1Connection
from antiphon_worker.providers.openai_chat.stream import ChatDecoder
from antiphon_worker.providers.stream.increments import _Body

# From the bytes of a chunk to a delta in the sink.
MOST_INSTRUCTIONS_A_CHUNK = 190
# The same from where the loop hands over what it has read.
MOST_INSTRUCTIONS_FROM_THE_SOCKET = 295
# What stays until the turn ends (its text), and what is there at the most meanwhile.
MOST_BLOCKS_A_CHUNK = 1.5
MOST_BYTES_A_CHUNK = 95.0


@pytest.fixture
def way():
    return warm_way()


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


def test_a_chunk_leaves_only_its_text_behind():
    assert measured(blocks_that_chunks_leave) <= MOST_BLOCKS_A_CHUNK


def test_chunks_that_wait_to_leave_take_little_memory():
    assert measured(bytes_of_waiting_chunks) <= MOST_BYTES_A_CHUNK


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
