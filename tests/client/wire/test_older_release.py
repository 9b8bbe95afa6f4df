"""The release before this one beside it on one Redis, in both directions: deploys go forward, and are taken back."""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager

import pytest
from support.ensemble import agent_spec, open_ensemble, signal_process
from support.eventually import wait_until_async
from support.releases import FIRST, THIS, prepare

from antiphon import Agent
from antiphon.errors import CorruptRecord
from antiphon.input.request import WAITS
from antiphon.model import CallerTool, FallbackModel, Limits, Timeouts

SESSIONS = [f"s{n}" for n in range(4)]
AGENT = agent_spec(tools=["note", "pay"])  # which both releases' stages have
ASKS = agent_spec(tools=["note", "pay"], approval=["pay"], version=WAITS)
REFUSED = "version|calls_opened|steered"
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

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.timeout(300),
]  # the first prepares the release


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    if reason := prepare(FIRST):
        pytest.skip(reason)


@asynccontextmanager
async def workers(ensemble, release, count=1):
    supervisor = ensemble.supervisor(release=release, lease=3)
    supervisor.ready(count)
    yield supervisor
    assert supervisor.process.terminate() == 0


@pytest.mark.short
@pytest.mark.parametrize("direction", ["forward", "back"])
async def test_turns_go_from_one_release_to_the_other(redis_url, tmp_path, processes, direction):
    first, second = (THIS, FIRST) if direction == "back" else (FIRST, THIS)
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        leaving = ensemble.supervisor(release=first)
        leaving.ready()
        turns = [await ensemble.submit(s, f"words:3 gate:{s}", agent=AGENT) for s in SESSIONS]
        turns += [await ensemble.submit(s, "words:3", agent=AGENT) for s in SESSIONS]
        for session in SESSIONS:
            await ensemble.waits(session)
        coming = ensemble.supervisor(release=second)
        coming.ready()
        signal_process(leaving.workers[0], signal.SIGKILL)
        signal_process(leaving.process.pid, signal.SIGTERM)
        for session in SESSIONS:
            ensemble.stage.open(session)
        for turn in turns:
            assert (await turn.result(60)).text
        await ensemble.whole(*SESSIONS)
        assert coming.process.terminate() == 0


@pytest.mark.parametrize("asking", [FIRST, THIS], ids=["the older", "this"])
async def test_a_client_of_one_release_is_answered_by_the_other(redis_url, processes, asking, ensemble):
    async with workers(ensemble, THIS if asking is FIRST else FIRST):
        process = processes.start(asking.python, "-c", ASK, redis_url, name="client", env=asking.env)
        assert process.wait(40) == 0, process.output
        messages, package = process.output.split()
        assert messages == "6"
        assert (FIRST.version in package) == (asking is FIRST)
        await ensemble.whole("s")


ASKS_MORE = {
    "an approval": {"agent": ASKS},
    "limits": {"agent": Agent("stage", "m", limits=Limits(tokens=1000))},
    "another model": {"agent": Agent("stage", "m", fallback=[FallbackModel("stage", "b")])},
    "time limits": {"agent": Agent("stage", "m", timeouts=Timeouts(first_token=5))},
    "tools of the caller": {"agent": AGENT, "caller_tools": [CallerTool("ask", "Ask", {"type": "object"})]},
    "tools of the caller of its agent": {
        "agent": Agent("stage", "m", caller_tools=[CallerTool("ask", "Ask", {"type": "object"})])
    },
}


@pytest.mark.parametrize("more", ASKS_MORE.values(), ids=ASKS_MORE)
async def test_an_older_worker_refuses_what_it_would_pass_over_and_a_requeue_runs_it(
    processes, more, ensemble
):
    async with workers(ensemble, FIRST):
        turn = await ensemble.submit("s", "tool:pay words:3" if more["agent"] is ASKS else "words:3", **more)
        with pytest.raises(CorruptRecord, match=REFUSED):
            await turn.result(60)
    assert ensemble.stage.notes("tool", tool="pay") == []
    async with workers(ensemble, THIS):
        await turn.requeue()
        if more["agent"] is ASKS:
            await ensemble.seen("s", "turn_suspended")
            await turn.approve("call_1", by="ada")
        assert (await turn.result(60)).text
    await ensemble.whole("s")


async def test_the_agent_that_a_session_keeps_is_not_passed_over_either(processes, ensemble):
    async with workers(ensemble, THIS):
        await (await ensemble.submit("s", "words:3", agent=ASKS)).result(60)
    async with workers(ensemble, FIRST):
        turn = await ensemble.submit("s", "tool:pay words:3", agent=None)
        with pytest.raises(CorruptRecord, match=REFUSED):
            await turn.result(60)
    assert ensemble.stage.notes("tool", tool="pay") == []


async def test_an_older_worker_fails_a_turn_that_revises_and_leaves_the_history(processes, ensemble):
    async with workers(ensemble, FIRST):
        await (await ensemble.submit("s", "words:3", agent=AGENT)).result(60)
        session = ensemble.client.session("s")
        before = await session.messages()
        again = [await session.regenerate(), await session.edit(before[0].id or "", "words:4")]
        for turn in again:
            with pytest.raises(CorruptRecord, match="version"):
                await turn.result(60)
        assert await session.messages() == before


async def test_a_suspended_turn_stays_so_beside_an_older_worker_which_runs_none_of_its_calls(
    processes, ensemble
):
    async with workers(ensemble, THIS):
        asks = await ensemble.submit("s", "tool:pay words:3", agent=ASKS)
        passed = await ensemble.submit("p", "tool:pay words:3", agent=ASKS, while_suspended="continue")
        for session in "sp":
            await ensemble.seen(session, "turn_suspended")
    async with workers(ensemble, FIRST):
        cell = ensemble.client.connections.cell_of_session("s")  # type: ignore[arg-type]
        await cell.redis.zadd(cell.keys.active, {"s": 1})  # it is due: the older reaper looks at it
        await wait_until_async(lambda: _looked_at(cell), 20, "the reaper has looked")
        assert await ensemble.field(asks, "status") == "suspended"
        assert (await (await ensemble.submit("p", "words:3", agent=AGENT)).result(60)).text  # it passes by
        for turn in (asks, passed):
            await turn.approve("call_1", by="ada")
            with pytest.raises(CorruptRecord, match=REFUSED):
                await turn.result(60)
    assert ensemble.stage.notes("tool", tool="pay") == []
    await ensemble.whole("s", "p")


async def _looked_at(cell) -> bool:
    return (await cell.redis.zscore(cell.keys.active, "s") or 0) > 1


async def test_turns_of_a_tenant_wait_for_a_worker_of_this_release_and_go_on(processes, ensemble):
    async with workers(ensemble, FIRST):
        turns = [await ensemble.submit(s, "words:3", agent=AGENT, tenant="acme") for s in SESSIONS]
        assert (await turns[0].result(60)).text
        async with workers(ensemble, THIS):
            cell = ensemble.client.connections.cell_of_session("s0")  # type: ignore[arg-type]
            for turn, session in zip(turns, SESSIONS, strict=True):
                await cell.redis.zadd(cell.keys.active, {session: 1}, xx=True)  # not in half a minute
                assert (await turn.result(60)).text
    await ensemble.whole(*SESSIONS)
