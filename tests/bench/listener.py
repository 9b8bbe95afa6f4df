"""``python -m bench.listener URL SESSION…``: a process that follows sessions as any service does.

It prints ``listening`` when all subscriptions stand, measures from SIGUSR1 to SIGUSR2, and then prints one line of
JSON: how many pieces came, in how many events, and how long after the model server had sent each.
``SESSION…`` may be ``PREFIX:NUMBER`` for the sessions PREFIX0, PREFIX1, ….
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

import uvloop

from antiphon.client import AsyncClient
from antiphon.subscribe import Subscription
from antiphon_worker.__main__ import set_up_logging
from bench.gauges import cpu_seconds, percentile

STAMP_DIGITS = 19
AT_ONCE = 200


class Tally:
    """What has come since the measurement began."""

    def __init__(self) -> None:
        self.events = 0
        self.lags: list[int] = []
        self.began = 0.0
        self.cpu = 0.0

    def begin(self) -> None:
        self.events, self.lags = 0, []
        self.began, self.cpu = time.monotonic(), cpu_seconds(os.getpid())

    def take(self, text: str) -> None:
        now = time.monotonic_ns()
        self.events += 1
        for piece in text.split("@")[1:]:
            self.lags.append(now - int(piece[:STAMP_DIGITS]))

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
            "lag_max_ms": max(lags, default=0.0),
        }


async def listen(url: str, sessions: list[str]) -> None:
    tally, over = Tally(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, tally.begin)
    loop.add_signal_handler(signal.SIGUSR2, lambda: print(json.dumps(tally.report()), flush=True))
    loop.add_signal_handler(signal.SIGTERM, over.set)

    async def follow(subscription: Subscription) -> None:
        async for event in subscription:
            if event.type == "text_delta":
                tally.take(event.text)  # type: ignore[attr-defined]

    async with AsyncClient(url) as client, contextlib.AsyncExitStack() as stack:
        subscriptions: list[Subscription] = []
        for session in sessions:
            cell = client.cell_of_session(session)  # type: ignore[arg-type]
            subscriptions.append(Subscription(cell, client.feed_of(cell), session, None))  # type: ignore[arg-type]
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
