"""Measures memory, each figure in its own process: threads of other tests also allocate.

Bytes are those allocated by our code, and in some figures by libraries; blocks are all of the process.
"""

import asyncio
import gc
import inspect
import os
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager

from support import forks
from support.chunks import NUMBER, warm_way
from support.eventually import patience, wait_until_async
from support.gateway import open_gateway
from support.here import running_worker
from support.raw_streams import opened
from support.source_tree import ROOT
from support.submitting import submit_turns, wait_for_the_ends

from antiphon.client import AsyncClient
from antiphon.input.ids import SessionId
from antiphon.input.request import AgentSpec
from antiphon_gateway.settings import Limits
from antiphon_worker.app import App

OURS = [tracemalloc.Filter(True, f"{ROOT}/{folder}/*") for folder in ("client", "worker")]
LIBRARIES = [
    tracemalloc.Filter(True, f"*/{name}")
    for name in ("asyncio/*", "contextlib.py", "redis/*", "uvicorn/*", "starlette/*")
]
SCRIPTED = AgentSpec(provider="scripted", model="m")
HANGING = AgentSpec(provider="openai-chat", model="m")


def measured(measure: Callable[..., float | Awaitable[float]], *arguments: str) -> float:
    """Call one of the functions below in a new process, and return what it returns."""
    told, tells = os.pipe()
    with os.fdopen(told) as answer:
        command = [sys.executable, "-m", "support.memory_use", measure.__name__, *arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        process = forks.start(command, env=env, stdout=tells, stderr=2)
        os.close(tells)
        said = answer.read()
    assert process.wait(patience(60)) == 0, f"{measure.__name__}: its error was printed"
    return float(said)


def bytes_of_waiting_chunks() -> float:
    """Return the bytes of a chunk that waits to leave the worker."""
    way, found = warm_way(), list[float]()
    for _ in range(3):
        with _traced(found, OURS, NUMBER):
            way.carry(NUMBER)
        way.leave()
    return min(found)


def blocks_that_chunks_leave() -> float:
    """Return the blocks that a chunk leaves behind after it has left the worker."""
    way, found = warm_way(), list[float]()
    for _ in range(3):
        with _allocated(found, NUMBER):
            way.carry(NUMBER)
            way.leave()
    return min(found)


async def blocks_that_turns_leave(url: str) -> float:
    """Return the blocks that an ended turn leaves behind in the worker."""
    number, found = 200, list[float]()
    async with running_worker(url):
        for batch in ("warm-up", "counted"):
            with _allocated(found, number):
                await submit_turns(url, batch, number, SCRIPTED)
                await asyncio.to_thread(wait_for_the_ends, url)
    return found[-1]


async def blocks_of_live_turns(url: str) -> float:
    """Return the blocks that a turn holds in the worker while its model answers."""
    number, found = 60, list[float]()
    async with (
        aclosing(App()) as app, running_worker(url, app, concurrency=number), AsyncClient(url) as client
    ):  # fmt: skip
        await (await client.submit("warm-up", "hi length:3", agent=HANGING)).result(60)
        with _allocated(found, number):
            for n in range(number):
                await client.submit(f"s{n}", "hi fault:hang=3", agent=HANGING)
            for n in range(number):
                await _answers(client, f"s{n}")
        for n in range(number):
            await client.session(f"s{n}").cancel()
    return found[-1]


async def _answers(client: AsyncClient, session: str) -> None:
    """Return when the model answers the turn of a session."""
    [cell] = client.connections.cells

    async def so() -> bool:
        return await cell.redis.xlen(cell.keys.events(SessionId(session))) > 2

    await wait_until_async(so, 30, "its model answers")


async def bytes_of_idle_subscriptions(url: str) -> float:
    """Return the bytes of a subscription that waits for an event of its session."""
    number, found = 200, list[float]()
    async with AsyncClient(url) as client, AsyncExitStack() as stack:
        await stack.enter_async_context(client.subscribe("warm-up", 0))
        for once in range(3):  # a table that grows in one round has room in the next
            with _traced(found, OURS + LIBRARIES, number):
                for n in range(number):
                    await stack.enter_async_context(client.subscribe(f"s{once}-{n}", 0))
                await _confirmed(client)
    return min(found)


async def bytes_of_idle_streams(url: str) -> float:
    """Return the bytes of an idle stream of a gateway."""
    number, found = 100, list[float]()
    with ExitStack() as sockets:
        async with open_gateway(url, limits=Limits(rate=10_000)) as (api, app):
            await asyncio.to_thread(opened, sockets, api.url, ["warm-up"])
            for once in range(3):
                with _traced(found, OURS + LIBRARIES, number):
                    names = [f"s{once}-{n}" for n in range(number)]
                    kept = await asyncio.to_thread(opened, sockets, api.url, names)
                    await _confirmed(app._services.client)
                assert len(kept) == number
            sockets.close()
    return min(found)


async def _confirmed(client: AsyncClient) -> None:
    """Return when Redis has confirmed all subscriptions."""
    [feed] = map(client.connections.feed_of, client.connections.cells)
    await wait_until_async(lambda: not feed._expected, 10, "all are confirmed")


@contextmanager
def _traced(found: list[float], of: list[tracemalloc.Filter], number: int) -> Iterator[None]:
    """Append the bytes allocated in the block, divided by ``number``, to ``found``."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        gc.collect()
        shown = tracemalloc.take_snapshot().filter_traces(of)
    finally:
        tracemalloc.stop()
    found.append(sum(one.size for one in shown.statistics("filename")) / number)


@contextmanager
def _allocated(found: list[float], number: int) -> Iterator[None]:
    """Append the blocks that were allocated and not freed, divided by ``number``, to ``found``."""
    gc.collect()
    before = sys.getallocatedblocks()
    yield
    gc.collect()
    found.append((sys.getallocatedblocks() - before) / number)


def _answer(measure: str, *arguments: str) -> float:
    found = globals()[measure](*arguments)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


if __name__ == "__main__":
    print(_answer(*sys.argv[1:]))
