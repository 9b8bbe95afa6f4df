"""The path of a chunk in the worker: splitter, decoder and sink of one turn, without network and Redis."""

import time

from antiphon.input.ids import Fence, SessionId, TurnId
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.loop.step_events import StepEvents
from antiphon_worker.process.lease import Lease
from antiphon_worker.process.publisher import Publisher, TurnSink
from antiphon_worker.providers.openai_chat.stream import ChatDecoder
from antiphon_worker.providers.stream.sse import EventSplitter

NUMBER = 500
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    b'{"content":" word %06d"},"logprobs":null,"finish_reason":null}]}\n\n'
)


class Way:
    """Splitter, decoder and sink of one turn, connected as in the worker."""

    def __init__(self) -> None:
        turn = ClaimedTurn(
            SessionId("s"), TurnId("t"), Fence("1-a"), "", None, None, None, "", b"{}", 1, 1, 0, 0, 1, "q", [], [], 0
        )  # fmt: skip
        lease = Lease(turn.session_id, turn.turn_id, turn.fence, time.monotonic() + 600)
        self.sink = TurnSink(turn, lease, Publisher(Cell(open_redis("redis://localhost:1"))))
        self._splitter, self._decoder = EventSplitter(), ChatDecoder("p", "m")
        self._outlet = StepEvents(1, "p", self.sink)

    def carry(self, first: int, number: int = NUMBER) -> None:
        """Process ``number`` chunks."""
        for index in range(first, first + number):
            for name, data in self._splitter.feed(CHUNK % index):
                self._decoder.event(name, data, self._outlet)

    def leave(self) -> None:
        """Empty the sink as if its events were published and confirmed."""
        assert self.sink.next_emit() is not None
        assert self.sink.answer("")


def warm_way() -> Way:
    """Return a path that chunks have already passed."""
    way = Way()
    way.carry(0)
    way.leave()
    return way
