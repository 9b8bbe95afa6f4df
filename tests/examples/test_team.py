"""examples/team.py: a hand-off, two sub-agents in parallel and an approval, in one process and on workers."""

from __future__ import annotations

import runpy
import subprocess
import sys

from support.eventually import wait_until_async
from support.here import running_worker
from support.source_tree import ROOT

from antiphon.client import AsyncClient
from antiphon_worker import App

EXAMPLE = ROOT / "examples" / "team.py"


def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [
        "clerk hands over to billing: A double charge.",
        "researcher: turn_queued",
        "researcher: turn_queued",
        "researcher: turn_finished",
        "researcher: turn_finished",
        "a person approves refund {'order': '4711', 'amount': 30}",
        "You were charged twice. Your 30 € are on their way.",
        "Your refund was ordered today. (billing)",
    ]


async def test_the_team_works_on_workers(redis_url):
    clerk = runpy.run_path(str(EXAMPLE))["clerk"]
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[clerk])):
        turn = await client.submit("s", "Why was I charged twice for 4711?")

        async def asks():
            return (await turn.info()).calls

        [call] = await wait_until_async(asks, 20, "the refund waits for a person")
        await turn.approve(call.call_id, by="ada")
        assert (await turn.result(20)).text.startswith("You were charged twice.")
        assert len(await client.session("s").children()) == 2
        assert (await (await client.submit("s", "When?")).result(20)).messages[0].agent == "billing"
