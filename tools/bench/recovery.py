"""How soon a turn continues after kill -9 of its worker process, and after the loss of its host."""

import asyncio
import os
import signal
import time

from support.eventually import wait_until_async
from support.processes import Process, worker_name

from antiphon.client import AsyncClient
from bench.gauges import cpu_seconds
from bench.load import AGENT
from bench.peers.catalogue import CLAIMED, DURABLE, QUEUES, missing
from bench.peers.losing import start_again
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "time from the loss of a worker to the first event of the next attempt"
WHAT = "goes on after"
PATIENCE_SECONDS = 45.0
TEXT = "hi pace:20 length:2000"


async def measure(plan: Plan, result: Result) -> None:
    lease = plan.pick(10.0, 2.0)
    killed = [await _killed() for _ in range(plan.rounds)]
    result.add("Antiphon, kill -9 of one of two processes", WHAT, killed, "s")
    if not plan.quick:
        alone = [await _killed(processes=1) for _ in range(plan.rounds)]
        result.add("Antiphon, kill -9 of the only process", WHAT, alone, "s")
    unusable = missing()
    others = (*QUEUES, *DURABLE, *CLAIMED)
    peers = [peer for peer in others if peer.module not in unusable][: plan.pick(None, 2)]
    patience = plan.pick(PATIENCE_SECONDS, 2.0)
    restarts = asyncio.get_running_loop().run_in_executor(None, start_again, peers, patience)
    lost = [await _host_lost(lease) for _ in range(plan.pick(2, 1))]
    result.add(f"Antiphon, a host is gone, lease {lease:g} s", WHAT, lost, "s")
    for name, found in (await restarts).items():
        if isinstance(found, float):
            result.add(name, WHAT, found, "s")
        elif found is None:
            result.note(name, f"not within {patience:g} s")
        else:
            result.fail(name, found)
    for peer in others:
        if peer.module in unusable:
            result.fail(peer.name, unusable[peer.module])
    result.remarks.append(
        "A host is lost by freezing all its processes. The peers: kill -9 of the worker that has the job, another "
        "one beside it, other settings as they come, until the job is started again. An only process has another one "
        "ready beside it, from a few seconds after its start on."
    )


async def _one_ready(worker: Process) -> None:
    """Return when the only worker process has a standby process that has finished loading."""
    await wait_until_async(lambda: len(worker.children()) == 2, 30, "a process is kept ready")
    (ready,) = set(worker.children()) - set(worker.workers())
    used = -1.0
    while used != (used := cpu_seconds(ready)):  # noqa: ASYNC110 - it polls a value of the system
        await asyncio.sleep(1.0)


async def _killed(processes: int = 2) -> float:
    with stand() as built:
        worker = built.worker(processes=processes)
        if processes == 1:  # it gets a standby process a few seconds after its start
            await _one_ready(worker)
        async with AsyncClient(built.redis.url) as client:
            turn = await client.submit("s", TEXT, agent=AGENT)
            holder = await _spoken(client, "s")
            pid = next(pid for pid in worker.workers() if worker_name(pid) == holder)
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            return await _goes_on(client, "s", began, turn.id)


async def _host_lost(lease: float) -> float:
    with stand() as built:
        first = built.worker(lease=str(lease))
        async with AsyncClient(built.redis.url) as client:
            turn = await client.submit("s", TEXT, agent=AGENT)
            await _spoken(client, "s")
            await _other_worker(built, lease)
            began = time.monotonic()
            first.freeze()
            try:
                return await _goes_on(client, "s", began, turn.id)
            finally:
                first.thaw()


async def _other_worker(built: Stand, lease: float) -> None:
    built.worker(lease=str(lease))
    await asyncio.sleep(
        lease / 2
    )  # its reaper first waits one lease; the loss may occur at any time within it


async def _spoken(client: AsyncClient, session: str) -> str:
    """Return the worker of the running turn, once a delta of it was seen."""
    holder = ""
    async with asyncio.timeout(30):
        async for event in client.subscribe(session, after=0):
            if event.type == "turn_started":
                holder = event.worker  # type: ignore[attr-defined]
            if event.type == "text_delta":
                return holder
    raise RuntimeError("the turn did not begin")


async def _goes_on(client: AsyncClient, session: str, began: float, turn: str) -> float:
    """Return the seconds to the first event of the second attempt."""
    async with asyncio.timeout(60):
        async for event in client.subscribe(session, after=0):
            if event.turn_id == turn and (event.attempt or 0) >= 2:
                return time.monotonic() - began
    raise RuntimeError("the turn did not go on")
