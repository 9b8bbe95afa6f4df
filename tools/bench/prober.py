"""``python -m bench.prober URL NUMBER PAUSE``: how long one caller waits, alternately in turns and bare SDK calls.

Prints one line of JSON with the times in milliseconds. The subscription is open before a turn is submitted, like
that of a page that shows the session; ``handle`` is what a script does: submit, then ``turn.stream()``.
"""

import asyncio
import json
import sys
import time
from typing import Any

import openai
import uvloop

from antiphon.client import AsyncClient
from antiphon.redis.subscription import Subscription
from bench.load import AGENT, ONE_CHUNK
from bench.sdk import MESSAGES, open_client

WARM_UP = 10


async def sdk_call(client: openai.AsyncOpenAI) -> tuple[float, float]:
    """Return the times to the first piece and to the end."""
    began, first = time.perf_counter(), 0.0
    stream = await client.chat.completions.create(
        model="bench", messages=MESSAGES, stream=True, max_completion_tokens=1
    )
    async for chunk in stream:
        if not first and chunk.choices and chunk.choices[0].delta.content:
            first = time.perf_counter()
    return first - began, time.perf_counter() - began


async def turn(client: AsyncClient, session: str) -> tuple[float, float]:
    cell = client.connections.cell_of_session(session)  # type: ignore[arg-type]
    first = 0.0
    async with Subscription(cell, client.connections.feed_of(cell), session, None) as events:  # type: ignore[arg-type]
        began = time.perf_counter()
        await client.submit(session, "hi", agent=AGENT, params=ONE_CHUNK)
        async for event in events:
            if not first and event.type == "text_delta":
                first = time.perf_counter()
            if event.terminal:
                break
    return first - began, time.perf_counter() - began


async def turn_by_handle(client: AsyncClient, session: str) -> tuple[float, float]:
    began, first = time.perf_counter(), 0.0
    handle = await client.submit(session, "hi", agent=AGENT, params=ONE_CHUNK)
    async for event in handle.stream():
        if not first and event.type == "text_delta":
            first = time.perf_counter()
    return first - began, time.perf_counter() - began


async def probe(url: str, number: int, pause: float) -> dict[str, list[float]]:
    found: dict[str, list[tuple[float, float]]] = {"sdk": [], "turn": [], "handle": []}
    name = f"probe-{time.time_ns()}"
    async with AsyncClient(url) as client, open_client("aiohttp") as sdk:
        for n in range(number + WARM_UP):
            found["sdk"].append(await sdk_call(sdk))
            await asyncio.sleep(pause)
            found["turn"].append(await turn(client, f"{name}-{n}"))
            await asyncio.sleep(pause)
            found["handle"].append(await turn_by_handle(client, f"{name}-h{n}"))
            await asyncio.sleep(pause)
    report: dict[str, Any] = {}
    for what, times in found.items():
        report[f"{what}_first"] = [first * 1000 for first, _ in times[WARM_UP:]]
        report[f"{what}_end"] = [end * 1000 for _, end in times[WARM_UP:]]
    return report


if __name__ == "__main__":
    print(json.dumps(uvloop.run(probe(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))
