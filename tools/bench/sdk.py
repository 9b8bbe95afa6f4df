"""``python -m bench.sdk calls|streams|raw …``: clients without any queue, each in its own process.

Prints one line of JSON. ``calls`` and ``streams`` use ``AsyncOpenAI`` in the usual way, on its own transport or on
aiohttp, which the extra ``bench`` installs and nothing else here needs; ``raw`` is a bare socket protocol, to show
what the model server itself can do.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

import openai
import uvloop

from bench.gauges import cpu_seconds

MESSAGES: Any = [{"role": "user", "content": "hi"}]
SETTLE_SECONDS = 1.0


def open_client(transport: str) -> openai.AsyncOpenAI:
    http_client = (
        openai.DefaultAioHttpClient() if transport == "aiohttp" else openai.DefaultAsyncHttpxClient()
    )
    return openai.AsyncOpenAI(http_client=http_client)


async def call(client: openai.AsyncOpenAI) -> None:
    """Run one call with a one-chunk answer."""
    stream = await client.chat.completions.create(
        model="bench", messages=MESSAGES, stream=True, max_completion_tokens=1
    )
    async for chunk in stream:
        assert chunk.choices


async def calls(transport: str, number: str, hands: str) -> dict[str, float]:
    async with open_client(transport) as client:

        async def some(count: int) -> None:
            for _ in range(count):
                await call(client)

        await asyncio.gather(*[some(3) for _ in range(int(hands))])
        began, cpu = time.perf_counter(), cpu_seconds(os.getpid())
        each = int(number) // int(hands)
        await asyncio.gather(*[some(each) for _ in range(int(hands))])
        done = each * int(hands)
        seconds = time.perf_counter() - began
        return {"calls": done / seconds, "cpu_us": (cpu_seconds(os.getpid()) - cpu) / done * 1e6}


async def streams(transport: str, number: str, pace: str, seconds: str) -> dict[str, float]:
    """Read ``number`` live streams at once through the SDK's objects.

    A late reader reads on without a pause, so each reader checks the clock itself.
    """
    carried = 0
    text = f"hi pace:{pace} length:{int(float(pace) * (float(seconds) + 60))}"
    messages: Any = [{"role": "user", "content": text}]
    client = open_client(transport)
    begin = time.perf_counter() + SETTLE_SECONDS + int(number) / 400
    end = begin + float(seconds)
    cpu: dict[str, float] = {}

    async def read() -> None:
        nonlocal carried
        stream = await client.chat.completions.create(model="bench", messages=messages, stream=True)
        async for chunk in stream:
            now = time.perf_counter()
            if now >= end:
                cpu.setdefault("end", cpu_seconds(os.getpid()))
                return
            if now >= begin and "begin" not in cpu:  # counting begins here, however late a timer would be
                cpu["begin"] = cpu_seconds(os.getpid())
            carried += now >= begin and bool(chunk.choices[0].delta.content)

    reading = [asyncio.create_task(read()) for _ in range(int(number))]
    await asyncio.wait(reading)
    return {
        "chunks": carried / float(seconds),
        "cpu_us": (cpu["end"] - cpu["begin"]) / max(carried, 1) * 1e6,
    }


class RawClient(asyncio.Protocol):
    """Sends a request again and again, and counts the responses."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.answers = self.chunks = 0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"data: ")
        if b"0\r\n\r\n" in data[-64:]:
            self.answers += 1
            self.transport.write(self.request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def raw(length: str, connections: str, seconds: str) -> dict[str, float]:
    host, port = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
    options: dict[str, Any] = {"model": "bench", "stream": True, "messages": MESSAGES}
    options["messages"] = [{"role": "user", "content": f"hi length:{length}"}]
    if length == "1":
        options["max_completion_tokens"] = 1
    body = json.dumps(options)
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer any\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_connection(lambda: RawClient(request), host, int(port)))[1]
        for _ in range(int(connections))
    ]
    await asyncio.sleep(0.3)

    def totals() -> tuple[int, int]:
        return sum(client.answers for client in clients), sum(client.chunks for client in clients)

    before, began = totals(), time.perf_counter()
    await asyncio.sleep(float(seconds))
    after, took = totals(), time.perf_counter() - began
    for client in clients:
        client.transport.abort()
    return {"calls": (after[0] - before[0]) / took, "chunks": (after[1] - before[1]) / took}


if __name__ == "__main__":
    work = {"calls": calls, "streams": streams, "raw": raw}[sys.argv[1]]

    async def measure() -> None:
        print(json.dumps(await work(*sys.argv[2:])), flush=True)
        os._exit(0)  # skip closing hundreds of streams that are not read any more

    uvloop.run(measure())
