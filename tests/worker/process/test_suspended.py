"""Turns that wait for decisions on real workers: nothing holds them, and nothing loses them."""

import asyncio
import os
import signal
from collections import Counter

import pytest
from support.ensemble import agent_spec, open_ensemble, signal_process
from support.eventually import patience, wait_until_async
from support.servers import RedisServer

from antiphon import Agent, tool
from antiphon.client import AsyncClient
from antiphon.errors import AlreadyDecided
from antiphon.input.request import WAITS
from antiphon.tools import CallerTool, Context
from antiphon_worker.app import App
from antiphon_worker.loop.step_calls import UNKNOWN_WHETHER_RUN
from antiphon_worker.loop.steps import ToolFinished
from antiphon_worker.loop.toolbox import TurnStopped
from antiphon_worker.process.journal import TurnJournal
from antiphon_worker.process.worker import Worker
from antiphon_worker.settings import Settings


def waiting_agent(*names):
    """The stage's agent, with tools that wait for an approval."""
    return agent_spec(approval=list(names), version=WAITS)


async def open_call(turn):
    """The one call that the turn waits for, as soon as it does."""

    async def waits():
        return await turn.status() == "suspended"

    await wait_until_async(waits, 30, "the turn is suspended")
    (call,) = (await turn.info()).calls
    return call


@pytest.mark.main_path
@pytest.mark.one_server
@pytest.mark.parametrize("decided_before", [False, True])
async def test_a_turn_waits_through_the_death_of_everything(tmp_path, processes, decided_before):
    with RedisServer(appendonly=True, appendfsync="always") as server:
        async with open_ensemble(server.url, tmp_path / "stage", processes) as ensemble:
            supervisor = ensemble.supervisor()
            turn = await ensemble.submit("s", "buy tool:note tool:pay", agent=waiting_agent("pay"))
            call = await open_call(turn)
            if decided_before:
                for pid in supervisor.workers:
                    signal_process(pid, signal.SIGSTOP)  # so that the decision is all that happens
                await turn.approve(call.call_id, by="ada")
            workers = supervisor.workers
            assert workers
            for pid in (supervisor.process.pid, *workers):
                signal_process(pid, signal.SIGKILL)
            server.restart()  # with a SIGKILL
            async with AsyncClient(server.url) as client:
                again = await client.turn(turn.id)
                if not decided_before:
                    assert [one.turn_id async for one in client.waiting()] == [turn.id]
                    await again.approve(call.call_id, by="ada")
                ensemble.supervisor()
                assert (await again.result(60)).text
                (decision,) = (await again.info()).decisions
                assert decision.by == "ada"
            assert [note["tool"] for note in ensemble.stage.notes("tool")] == ["note", "pay"], "each ran once"
            await ensemble.whole("s")


@pytest.mark.main_path
@pytest.mark.one_server
async def test_a_turn_sleeps_through_the_death_of_everything_and_runs_each_step_once(tmp_path, processes):
    with RedisServer(appendonly=True, appendfsync="always") as server:
        async with open_ensemble(server.url, tmp_path / "stage", processes) as ensemble:
            supervisor = ensemble.supervisor()
            turn = await ensemble.submit("s", "rest tool:nap", agent=agent_spec(tools=["nap"]))

            async def sleeps():
                return await turn.status() == "suspended"

            await wait_until_async(sleeps, 30, "the turn sleeps")
            for pid in (supervisor.process.pid, *supervisor.workers):
                signal_process(pid, signal.SIGKILL)
            server.restart()  # with a SIGKILL
            async with AsyncClient(server.url) as client:
                again = await client.turn(turn.id)
                (wait,) = (await again.info()).waits
                assert [one async for one in client.waiting()] == [], "it waits for nobody"
                ensemble.supervisor()
                (outcome,) = (await again.result(60)).tool_calls
                assert outcome.result == "rested"
                assert (await again.info()).ended >= wait.until
            assert [note["name"] for note in ensemble.stage.notes("step")] == ["first", "second"]
            await ensemble.whole("s")


async def test_a_worker_that_dies_in_an_approved_tool_is_followed_by_one_that_knows_of_the_approval(
    processes, ensemble
):
    ensemble.supervisor(processes=2)
    turn = await ensemble.submit("s", "go tool:wait", agent=waiting_agent("wait"))
    call = await open_call(turn)
    await turn.approve(call.call_id, by="ada")
    await wait_until_async(lambda: ensemble.stage.notes("tool"), 30, "the tool runs")
    os.kill(ensemble.stage.notes("tool")[0]["pid"], signal.SIGKILL)
    await wait_until_async(lambda: len(ensemble.stage.notes("tool")) == 2, 30, "the tool runs again")
    ensemble.stage.open("tool")
    await turn.result(60)
    types = [event.type for event in await ensemble.events("s")]
    assert (types.count("turn_suspended"), types.count("turn_resumed")) == (1, 1)
    await ensemble.whole("s")


@pytest.mark.parametrize("approves", [False, True])
async def test_of_ten_clients_that_decide_at_once_one_decides(ensemble, redis_url, approves):
    """Every second one rejects, so that either kind wins somewhere; with ``approves`` none does."""
    async with ensemble.worker():
        turn = await ensemble.submit("s", "go tool:note", agent=waiting_agent("note"))
        call = await open_call(turn)
        clients = [AsyncClient(redis_url) for _ in range(10)]
        try:
            turns = [await client.turn(turn.id) for client in clients]
            raced = [
                one.approve(call.call_id, by=f"client {n}")
                if approves or n % 2
                else one.reject(call.call_id, by=f"client {n}")
                for n, one in enumerate(turns)
            ]
            answers = await asyncio.gather(*raced, return_exceptions=True)
        finally:
            for client in clients:
                await client.aclose()
        (winner,) = [n for n, answer in enumerate(answers) if answer is None]
        late = [answer for answer in answers if answer is not None]
        assert all(isinstance(one, AlreadyDecided) for one in late)
        assert {one.decision.by for one in late} == {f"client {winner}"}
        await turn.result(60)
        assert [event.type for event in await ensemble.events("s")].count("turn_resumed") == 1
        assert len(ensemble.stage.notes("tool")) == (approves or winner % 2), (
            "it ran once, or it was rejected"
        )
        assert {(one.decision.kind) for one in late} == {"approve" if approves or winner % 2 else "reject"}
        await ensemble.whole("s")


@pytest.mark.one_server
async def test_a_worker_holds_nothing_of_the_turns_that_wait(ensemble):
    async with ensemble.worker(concurrency=2):
        turns = [
            await ensemble.submit(f"s{n}", "go tool:note", agent=waiting_agent("note")) for n in range(6)
        ]
        calls = [await open_call(turn) for turn in turns]
        free = await ensemble.submit("free", "hello")
        assert (await free.result(60)).text, "more turns wait than the worker has places"
        for turn, call in zip(turns, calls, strict=True):
            await turn.approve(call.call_id)
        for turn in turns:
            await turn.result(60)
        await ensemble.whole(*(f"s{n}" for n in range(6)))


STEPS = (
    [("plain", 1), ("plain", 2)],
    [("careful", 3), ("plain", 4), ("careful", 5)],
    [("open_page", 6), ("once", 7), ("careful_once", 8)],
    [("failing", 9), ("open_page", 10)],
)
RUNS = Counter([1, 2, 3, 4, 7, 8, 9])  # 5 is rejected, 6 and 10 are the caller's
UNDISTURBED = "s-0"


class Crash(TurnStopped):
    """The worker writes nothing more of the turn, and its lease expires."""


class Crashes:
    """Ends the turn of the session ``s-<n>`` at the n-th moment of its journal, once."""

    def __init__(self):
        self.moments = Counter()
        self.lost = {}  # the calls whose results were not written, by session

    def moment(self, session, entries):
        self.moments[session] += 1
        if self.moments[session] == int(session.removeprefix("s-")):
            self.lost[session] = {one.result.call_id for one in entries if isinstance(one, ToolFinished)}
            raise Crash


@pytest.fixture
def crashes(monkeypatch):
    found, append = Crashes(), TurnJournal.append

    async def crashing(journal, entries, events):
        session = journal._turn.session_id
        found.moment(session, entries)
        await append(journal, entries, events)
        found.moment(session, ())

    monkeypatch.setattr(TurnJournal, "append", crashing)
    return found


def counting_app(runs):
    def counted(name, **options):
        async def function(n: int, context: Context) -> str:
            runs[context.session_id, n] += 1
            if name == "failing":
                raise ValueError(n)
            return f"{name} {n}"

        return tool(name=name, **options)(function)

    tools = [
        counted("plain"),
        counted("careful", approval=True),
        counted("once", at_most_once=True),
        counted("careful_once", at_most_once=True, approval=True),
        counted("failing"),
    ]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    said = [[{"type": "tool_call", "call_id": "", "name": name, "arguments": {"n": n}} for name, n in step]
            for step in STEPS]  # fmt: skip
    agent = Agent(
        "scripted", "any", name="agent", tools=tools, script=[*said, "The end."],
        caller_tools=[CallerTool("open_page", "Open a page.", schema)],
    )  # fmt: skip
    return App(agents=[agent])


async def played(client, session):
    """The history that the turn leaves."""
    its = client.session(session, agent="agent")
    await its.run(
        "Go",
        on_approval=lambda call: "No." if call.arguments["n"] == 5 else True,
        on_tool=lambda call: f"page {call.arguments['n']}",
    )
    return await its.history()


@pytest.mark.one_server
async def test_after_a_crash_at_any_write_the_history_is_the_same_and_each_tool_ran_as_often_as_it_must(
    redis_url, crashes
):
    runs = Counter()
    settings = Settings(redis_url=redis_url, lease=2.0, concurrency=100)
    worker = Worker(settings, counting_app(runs), url=redis_url)
    working = asyncio.create_task(worker.run())
    try:
        async with AsyncClient(redis_url) as client:
            expected = await played(client, UNDISTURBED)
            sessions = [f"s-{n}" for n in range(1, crashes.moments[UNDISTURBED] + 1)]
            async with asyncio.timeout(patience(60)):
                histories = await asyncio.gather(*(played(client, session) for session in sessions))
    finally:
        worker.abort()
        await working
    assert len(sessions) > 25
    assert set(crashes.lost) == set(sessions), "each turn had its crash"
    numbers = {call.call_id: call.arguments["n"] for m in expected for call in m.tool_calls}
    for session, history in zip(sessions, histories, strict=True):
        unknown = {r.call_id for m in history for r in m.tool_results if r.text == UNKNOWN_WHETHER_RUN}
        assert {numbers[call] for call in unknown} <= {7, 8}  # those that must not run twice
        repeated = {numbers[call] for call in crashes.lost[session] - unknown} & set(RUNS)
        not_begun = {numbers[call] for call in unknown - crashes.lost[session]}
        ran = Counter({n: times for (where, n), times in runs.items() if where == session})
        assert ran == RUNS + Counter(repeated) - Counter(not_begun), session
        for message, other in zip(history, expected, strict=True):
            assert [(one.call_id, one.kind, one.by) for one in message.decisions] == [
                (one.call_id, one.kind, one.by) for one in other.decisions
            ]
            for part, same in zip(message.parts, other.parts, strict=True):
                assert part == same or part.call_id in unknown
