"""``python -m bench.listener URL SESSION…``: a process that follows sessions as any service does.

It prints ``listening`` when all subscriptions are open, measures from SIGUSR1 on, and prints at each SIGUSR2 one line
of JSON: how many pieces arrived, in how many events, how long after the model server had sent each, how old the newest
one is, and how many events were missed. Separate several URLs by commas; ``SESSION…`` may be ``PREFIX:NUMBER`` for
the sessions PREFIX0, PREFIX1, ….
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

import uvloop

from antiphon.client import AsyncClient
from antiphon.events import Event
from antiphon.redis.subscription import Subscription
from antiphon.telemetry import set_up_logging
from bench.gauges import cpu_seconds, percentile

STAMP_DIGITS = 19
AT_ONCE = 200


class Tally:
    """What has arrived since the measurement began."""

    def __init__(self) -> None:
        self.events = 0
        self.lags: list[int] = []
        self.began = 0.0
        self.cpu = 0.0
        self.newest = 0
        self.missed = 0

    def begin(self) -> None:
        self.events, self.lags = 0, []
        self.began, self.cpu = time.monotonic(), cpu_seconds(os.getpid())

    def take(self, event: Event, last: int) -> None:
        """Count an event that follows the event with the seq ``last``, 0 for the first."""
        self.missed += bool(last) and event.seq - last - 1
        if event.type != "text_delta":
            return
        now = time.monotonic_ns()
        self.events += 1
        for piece in event.text.split("@")[1:]:  # type: ignore[attr-defined]
            self.newest = int(piece[:STAMP_DIGITS])
            self.lags.append(now - self.newest)

    def report(self) -> dict[str, float]:
        seconds = time.monotonic() - self.began
        lags = [lag / 1e6 for lag in self.lags]
        return {
            "pieces": len(lags),
            "events": self.events,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds(os.getpid()) - self.cpu,
            "lag_p50_ms": percentile(lags, 0.5),
            "lag_p99_ms": percentile(lags, 0.99),
            "newest_ms": (time.monotonic_ns() - self.newest) / 1e6,
            "missed": self.missed,
        }


async def listen(url: str, sessions: list[str]) -> None:
    tally, over = Tally(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, tally.begin)
    loop.add_signal_handler(signal.SIGUSR2, lambda: print(json.dumps(tally.report()), flush=True))
    loop.add_signal_handler(signal.SIGTERM, over.set)

    async def follow(subscription: Subscription) -> None:
        last = 0
        async for event in subscription:
            tally.take(event, last)
            last = event.seq

    async with AsyncClient(url.split(",")) as client, contextlib.AsyncExitStack() as stack:
        subscriptions: list[Subscription] = []
        for session in sessions:
            cell = client.connections.cell_of_session(session)  # type: ignore[arg-type]
            subscriptions.append(Subscription(cell, client.connections.feed_of(cell), session, None))  # type: ignore[arg-type]
            stack.push_async_callback(subscriptions[-1].aclose)
        for start in range(0, len(subscriptions), AT_ONCE):
            await asyncio.gather(*[one.start() for one in subscriptions[start : start + AT_ONCE]])
        tasks = [asyncio.create_task(follow(one)) for one in subscriptions]
        print("listening", flush=True)
        await over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def named(words: list[str]) -> list[str]:
    sessions: list[str] = []
    for word in words:
        prefix, _, number = word.partition(":")
        sessions += [f"{prefix}{i}" for i in range(int(number))] if number else [word]
    return sessions


if __name__ == "__main__":
    set_up_logging("warning")
    uvloop.run(listen(sys.argv[1], named(sys.argv[2:])))
