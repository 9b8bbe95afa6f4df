"""``python -m bench.web_listener URL SESSION…``: a process that follows sessions through a gateway, a stream each.

Prints what ``bench.listener`` prints, in the same way. It reads bytes, so that the gateway is measured.
"""

import asyncio
import json
import re
import signal
import sys
import time
from urllib.parse import urlsplit

import uvloop

from bench.listener import Tally, named

STAMP = re.compile(rb"id: (\d+)\ndata: [^\n]*@(\d{19})")
AT_ONCE = 50


class Stream(asyncio.Protocol):
    """One response. ``begun`` is set when its head has arrived."""

    def __init__(self, session: str, tally: Tally) -> None:
        self._session, self._tally = session, tally
        self._rest, self._last = b"", 0
        self.begun = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = f"GET /sessions/{self._session}/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        transport.write(request.encode())  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self.begun.done() and data.startswith(b"HTTP/1.1 200"):
            self.begun.set_result(None)
        now, tally = time.monotonic_ns(), self._tally
        whole, end, self._rest = (self._rest + data).rpartition(b"\n\n")
        for seq, stamp in STAMP.findall(whole + end):
            tally.missed += bool(self._last) and int(seq) - self._last - 1
            self._last, tally.newest = int(seq), int(stamp)
            tally.events += 1
            tally.lags.append(now - tally.newest)


async def listen(url: str, sessions: list[str]) -> None:
    tally, over, loop = Tally(), asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, tally.begin)
    loop.add_signal_handler(signal.SIGUSR2, lambda: print(json.dumps(tally.report()), flush=True))
    loop.add_signal_handler(signal.SIGTERM, over.set)
    where = urlsplit(url)
    for start in range(0, len(sessions), AT_ONCE):
        streams = [Stream(one, tally) for one in sessions[start : start + AT_ONCE]]
        for one in streams:
            await loop.create_connection(lambda one=one: one, where.hostname, where.port)
        await asyncio.wait_for(asyncio.gather(*(one.begun for one in streams)), 30)
    print("listening", flush=True)
    await over.wait()


if __name__ == "__main__":
    uvloop.run(listen(sys.argv[1], named(sys.argv[2:])))
