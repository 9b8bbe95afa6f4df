"""Three revisions in real processes that die by kill -9, and a rolling deploy: no turn changes its revision."""

import asyncio
import os
import signal
from contextlib import suppress
from random import Random

import pytest
from support.eventually import wait_until_async
from support.revisions import MODULE, client_of

pytestmark = [pytest.mark.one_server, pytest.mark.nightly]

SESSIONS, STEPS, KILLS = 24, 4, 6


def said(info) -> set[str]:
    """The revisions whose words and tools the turn has."""
    texts = [one.text for one in info.messages] + [
        one.text for message in info.messages for one in message.tool_results
    ]
    return {*filter(None, texts)}


class Deployment:
    """Workers of several revisions, by their names."""

    def __init__(self, url, processes, folder, client) -> None:
        self._url, self._processes, self._folder, self._client = url, processes, folder, client
        self._random = Random(7)
        self.workers = {}

    async def start(self, *names: str) -> None:
        """Start a worker of each revision, and wait until all are listed."""
        for name in names:
            (self._folder / f"{name}.py").write_text(MODULE.format(name=name, steps=STEPS))
            flags = ("--app", f"{name}:app", "--lease", "2")
            self.workers[name] = self._processes.worker(
                self._url, *flags, env={"PYTHONPATH": str(self._folder)}
            )
        for name in names:
            self.workers[name].wait_for_output("takes turns")

        async def there() -> bool:
            return len(await self.listed()) == len(self.workers)

        await wait_until_async(there, 30, "all revisions have workers")

    async def listed(self) -> set[str]:
        return {one.revision async for one in self._client.agents() if one.workers}

    async def kill_one(self) -> None:
        """Kill a worker process while turns run, as the kernel does when memory is short."""
        pids: list[int] = []

        async def busy() -> bool:
            pids[:] = [pid for one in self.workers.values() for pid in one.workers()]
            return bool(pids) and sum([one.running async for one in self._client.agents()]) > 0

        await wait_until_async(busy, 60, "turns run")
        with suppress(ProcessLookupError):
            os.kill(self._random.choice(pids), signal.SIGKILL)


async def moved_turns(client, last) -> set[str]:
    """The turns of a session that a time limit has moved to another revision, up to its last turn."""
    found = set()
    async for event in client.subscribe(last.session_id, after=0):
        if event.type == "agent_changed" and event.reason == "revision_unavailable":
            found.add(event.turn_id)
        if event.type == "turn_finished" and event.turn_id == last.id:
            return found
    raise AssertionError("unreachable")


async def test_no_step_runs_on_another_revision_than_its_turn(redis_url, processes, tmp_path):
    async with client_of(redis_url) as client:
        deployment = Deployment(redis_url, processes, tmp_path, client)
        await deployment.start("v1", "v2")
        older = await deployment.listed()
        turns = [await client.submit(f"s{n}", "Go", agent="support") for n in range(SESSIONS)]
        for n in range(KILLS // 2):
            await deployment.kill_one()
            turns.append(await client.submit(f"s{n}", "Go", agent="support"))
        await deployment.start("v3")
        (newest,) = await deployment.listed() - older
        await client.agents().promote(f"support@{newest}")
        last = [await client.submit(f"s{n}", "Go on", agent="support") for n in range(SESSIONS)]
        for _ in range(KILLS // 2):
            await deployment.kill_one()
        assert await asyncio.to_thread(deployment.workers.pop("v1").terminate) == 0
        for turn in turns + last:
            await turn.result(120)
        infos = [await turn.info() for turn in turns + last]
        moved = set().union(*[await moved_turns(client, one) for one in last])
        assert {
            one.turn_id: said(one) for one in infos if len(said(one)) > 1 and one.turn_id not in moved
        } == {}
        assert any(one.attempt > 1 for one in infos), "a kill has hit a turn"
        assert {name for one in infos for name in said(one)} == {"v1", "v2", "v3"}
