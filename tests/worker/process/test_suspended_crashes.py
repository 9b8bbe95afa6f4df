"""A turn with approvals and a tool of the caller, whose worker crashes at each write of its journal in turn."""

import asyncio
from collections import Counter

import pytest

from antiphon import Agent, AsyncClient, tool
from antiphon.tools import CallerTool, Context
from antiphon_worker.app import App
from antiphon_worker.loop.step_calls import UNKNOWN_WHETHER_RUN
from antiphon_worker.loop.steps import ToolFinished
from antiphon_worker.loop.toolbox import TurnStopped
from antiphon_worker.process.journal import TurnJournal
from antiphon_worker.process.worker import Worker
from antiphon_worker.settings import Settings

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
            async with asyncio.timeout(60):
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
