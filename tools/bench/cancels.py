"""How soon a cancelled turn has ended, while many others stream: from the call to the terminal event."""

import asyncio
import time
from collections.abc import Sequence

from antiphon.client import AsyncClient
from antiphon.input.ids import SessionId
from antiphon.redis.turn import AsyncTurn
from bench.gauges import percentile
from bench.live import live_streams
from bench.load import all_ended
from bench.results import Plan, Result

TITLE = "from a cancel to the terminal event, beside live streams in one worker process"
PACE = 20
NUMBERS = (100, 200)
SHARE = 0.25
APART_SECONDS = 0.02
LIMIT_MS = 200.0


async def measure(plan: Plan, result: Result) -> None:
    numbers = plan.pick(NUMBERS, (100,))
    async with (
        live_streams(PACE, 30.0 * len(numbers), 1) as live,
        AsyncClient(live.built.redis.url) as client,
    ):
        first = 0
        for number in numbers:
            await live.grow(first + number)
            turns = await _running(client, first, number)
            some = int(number * SHARE)
            _row(result, f"{number} streams, one after the other", await _one_by_one(turns[:some]))
            _row(result, f"{number} streams, all the others at once", await _at_once(turns[some:]))
            first += number
    result.remarks.append(
        f"Each turn streams {PACE} chunks/s. A row has p50 and p99 from the call of `turn.cancel()` to the time of the "
        f"terminal event, which is published after the connection to the model has been closed. "
        f"The aim is {LIMIT_MS:g} ms."
    )


async def _running(client: AsyncClient, first: int, number: int) -> list[AsyncTurn]:
    """Return the turns of these streams."""
    found: list[AsyncTurn] = []
    for index in range(first, first + number):
        snapshot = await client.snapshot(f"live-{index}")
        if snapshot.turn_id is not None:
            found.append(AsyncTurn(client.connections, snapshot.turn_id, SessionId(f"live-{index}")))
    return found


async def _one_by_one(turns: Sequence[AsyncTurn]) -> list[float]:
    called: list[float] = []
    for turn in turns:
        called.append(time.time() * 1000)
        await turn.cancel("enough", keep="partial")
        await asyncio.sleep(APART_SECONDS)
    return await _times(turns, called)


async def _at_once(turns: Sequence[AsyncTurn]) -> list[float]:
    called = [time.time() * 1000] * len(turns)
    await asyncio.gather(*[turn.cancel("enough", keep="partial") for turn in turns])
    return await _times(turns, called)


async def _times(turns: Sequence[AsyncTurn], called: Sequence[float]) -> list[float]:
    """Return the ms from each call to the end, by the clock of this machine, which Redis shares."""
    await all_ended(turns, 60)
    infos = [await turn.info() for turn in turns]
    wrong = [info.turn_id for info in infos if info.status != "cancelled"]
    if wrong:
        raise RuntimeError(f"{len(wrong)} turns did not end as cancelled")
    return [max(0.0, info.ended - began) for info, began in zip(infos, called, strict=True)]


def _row(result: Result, name: str, times: list[float]) -> None:
    result.add(name, "turns", len(times), "")
    result.add(name, "p50", percentile(times, 0.5), "ms")
    result.add(name, "p99", percentile(times, 0.99), "ms")
