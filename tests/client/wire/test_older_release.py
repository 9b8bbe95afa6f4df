"""The release before this one beside it on one Redis, in both directions: deploys go forward, and are taken back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
from support.ensemble import agent_spec, open_ensemble, signal_process
from support.source_tree import ROOT

from antiphon.errors import CorruptRecord

OLDER = "2164fd9"
"""A commit whose workers and clients people may still run."""
SESSIONS = [f"s{n}" for n in range(4)]
AGENT = agent_spec(tools=["note"])  # which both releases' stages have
ASK = """
import sys
import antiphon
from antiphon import Agent, Client

with Client(sys.argv[1]) as client:
    for n in range(3):
        turn = client.submit("s", f"words:3 {n}", agent=Agent(provider="stage", model="m"))
        heard = "".join(event.text for event in turn.stream() if event.type == "text_delta")
        assert heard.split()[-1] == turn.result(60).text.split()[-1], heard
    print(len(client.session("s").history()), antiphon.__file__)
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory) -> dict[str, str]:
    """The environment in which Python finds the older release."""
    folder = tmp_path_factory.mktemp("older")
    command = [shutil.which("git") or "false", "archive", OLDER, "client", "worker", "tests"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"the history of this checkout does not reach back to {OLDER}")
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    paths = [str(folder / name) for name in ("tests", "client", "worker")]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize("direction", ["forward", "back"])
async def test_turns_go_from_one_release_to_the_other(redis_url, tmp_path, processes, older, direction):
    first, second = ({}, older) if direction == "back" else (older, {})
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        leaving = ensemble.supervisor(env=first)
        leaving.ready()
        turns = [await ensemble.submit(s, f"words:3 gate:{s}", agent=AGENT) for s in SESSIONS]
        turns += [await ensemble.submit(s, "words:3", agent=AGENT) for s in SESSIONS]
        for session in SESSIONS:
            await ensemble.waits(session)
        coming = ensemble.supervisor(env=second)
        coming.ready()
        signal_process(leaving.workers[0], signal.SIGKILL)
        signal_process(leaving.process.pid, signal.SIGTERM)
        for session in SESSIONS:
            ensemble.stage.open(session)
        for turn in turns:
            assert (await turn.result(60)).text
        await ensemble.whole(*SESSIONS)
        assert coming.process.terminate() == 0


@pytest.mark.parametrize("asking", ["the older", "this"])
async def test_a_client_of_one_release_is_answered_by_the_other(
    redis_url, tmp_path, processes, older, asking
):
    client, worker = (older, {}) if asking == "the older" else ({}, older)
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        supervisor = ensemble.supervisor(env=worker)
        supervisor.ready()
        process = processes.python("-c", ASK, redis_url, name="client", env=client)
        assert process.wait(40) == 0, process.output
        messages, package = process.output.split()
        assert messages == "6"
        assert ("older" in package) == (asking == "the older")
        await ensemble.whole("s")
        assert supervisor.process.terminate() == 0


async def test_an_older_worker_fails_a_turn_that_revises_and_leaves_the_history(
    redis_url, tmp_path, processes, older
):
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        supervisor = ensemble.supervisor(env=older)
        supervisor.ready()
        await (await ensemble.submit("s", "words:3", agent=AGENT)).result(60)
        session = ensemble.client.session("s")
        before = await session.messages_async()
        again = [await session.regenerate_async(), await session.edit_async(before[0].id or "", "words:4")]
        for turn in again:
            with pytest.raises(CorruptRecord, match="version"):
                await turn.result(60)
        assert await session.messages_async() == before
        assert supervisor.process.terminate() == 0
