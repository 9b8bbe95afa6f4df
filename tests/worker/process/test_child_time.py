"""No child outlives the call, or the attempt of the turn above, that has begun it."""

import time
from types import SimpleNamespace

import pytest
from support.eventually import wait_until_async
from support.here import running_worker
from worker.process.test_children import Desk, Gate

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.input.request import ParentTurn, TurnRequest
from antiphon.testing import script, tool_call
from antiphon.tools.children import ChildTool
from antiphon_worker.app import App
from antiphon_worker.loop.steps import ChildBegun
from antiphon_worker.process import children as module
from antiphon_worker.process import elsewhere
from antiphon_worker.process.children import ChildWaits, call_seconds, left_of_child
from antiphon_worker.process.journal import TurnJournal

pytestmark = pytest.mark.one_server

HOUR_MS = 3_600_000


def attempt(timeout=None, seconds=600.0, parent=None, submitted=0, passed=0.0):
    """An attempt at a turn that began ``passed`` seconds ago."""
    return SimpleNamespace(
        request=TurnRequest([], timeout=timeout, parent=parent), seconds=seconds, began=time.monotonic() - passed,
        turn=SimpleNamespace(created=submitted),
    )  # fmt: skip


def as_tool(timeout=None) -> ChildTool:
    return Agent("scripted", "any", name="a").as_tool(timeout=timeout)


def child_of(seconds):
    return ParentTurn("s", "t", seconds=seconds)


def test_a_child_has_the_least_time_of_what_has_begun_it():
    assert call_seconds(as_tool(), attempt(), 0) is None
    assert call_seconds(as_tool(60), attempt(), 0) == 60
    assert call_seconds(as_tool(), attempt(timeout=90, passed=30), 0) == pytest.approx(60, abs=1)
    assert call_seconds(as_tool(), attempt(timeout=900, passed=30), 0) == pytest.approx(570, abs=1)
    assert call_seconds(as_tool(), attempt(parent=child_of(60), submitted=5000), 25_000) == 40
    assert call_seconds(as_tool(7), attempt(timeout=90, parent=child_of(60), submitted=5000), 25_000) == 7
    assert call_seconds(as_tool(7), attempt(parent=child_of(60)), HOUR_MS) == 0
    assert call_seconds(as_tool(), attempt(parent=child_of(None)), HOUR_MS) is None


def test_a_clock_that_was_put_back_gives_a_child_no_more_time():
    turn = SimpleNamespace(created=HOUR_MS)
    assert left_of_child(child_of(60), turn, 1000) == 60
    waits = ChildWaits(ChildBegun(1, "c", "t", "s", "a", until=HOUR_MS, seconds=50.0))
    assert waits.next(HOUR_MS - 50_000) == 30
    waits.waited()
    assert waits.next(1000) == 20
    waits.waited()
    assert waits.next(1000) == 0


def test_a_call_whose_journal_is_older_waits_by_the_clock():
    waits = ChildWaits(ChildBegun(1, "c", "t", "s", "a", until=HOUR_MS))
    assert waits.next(HOUR_MS - 10_000) == 10
    assert waits.next(HOUR_MS) == 0
    for_ever = ChildWaits(ChildBegun(1, "c", "t", "s", "a"))
    pauses = []
    for _ in range(9):
        pauses.append(for_ever.next(0))
        for_ever.waited()
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


async def _cancelled(turn, reason):
    """Wait until a turn was cancelled for this reason."""

    async def over():
        info = await turn.info()
        return info.status == "cancelled" and info.error

    assert await wait_until_async(over, 20, "the child has ended") == reason


async def test_a_child_ends_with_the_attempt_that_has_begun_it(place, monkeypatch):
    monkeypatch.setattr(module, "call_seconds", lambda *begun: 0.3 if begun[1].request.timeout else None)
    gate = Gate()
    desk = Desk(answers=(tool_call("wait"),), tools=[gate.tool])
    async with place(desk.writer) as session_of:
        session = session_of("s")
        turn = await session.submit("Plan it.", timeout=300)
        response = await turn.result(20)
        assert response.text == "Go in November."
        [call] = response.tool_calls
        assert call.result == "The agent research did not answer in time, and was stopped."
        children = {event.child_id async for event in turn.stream(after=0) if event.type == "child_event"}
        [child] = await session.children()
        await _cancelled(await session_of(child).turn(children.pop()), module.TIME_OVER)


async def test_a_child_ends_in_time_although_its_parent_does_not_see_to_it(redis_url, monkeypatch):
    """As if no worker took the parent: the child of a child knows its time itself."""

    async def nothing(*args):
        """What would stop the child of the child is not there."""
        return True

    monkeypatch.setattr(module, "stop_children", nothing)
    monkeypatch.setattr(elsewhere, "stop_children", nothing)
    monkeypatch.setattr(module.Kin, "_waits", nothing)
    gate = Gate()
    deep = Agent(script(tool_call("wait"), repeat=True), "any", name="deep", tools=[gate.tool])
    middle = script(tool_call("deep", input="Go."), "Middle.", repeat=True)
    desk = Desk()
    desk.research = Agent(middle, "any", name="research", tools=[deep.as_tool()])
    desk.writer = Agent(desk.said, "any", name="writer", tools=[desk.research.as_tool(timeout=3)])
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer")

        async def begun():
            return gate.entered

        await wait_until_async(begun, 20, "the child of the child runs")
        [child] = await client.session("s").children()
        [grandchild] = await client.session(child).children()
        [below] = [one async for one in client.turns(grandchild)]
        await _cancelled(below, module.TIME_OVER)
        assert (await turn.result(20)).text == "Go in November."


async def test_a_call_ends_in_time_when_the_clock_is_put_back(place, monkeypatch):
    monkeypatch.setattr(module, "FIRST_WAIT", 0.1)
    now, jumps = TurnJournal.now, []

    async def put_back(self):
        jumps.append(await now(self))
        return jumps[-1] - HOUR_MS * (len(jumps) > 1)

    desk = Desk(answers=(tool_call("wait"),), tools=[Gate().tool], timeout=0.3)
    monkeypatch.setattr(TurnJournal, "now", put_back)
    async with place(desk.writer) as session_of:
        [call] = (await session_of("s").run("Plan it.")).tool_calls
    assert "did not answer in time" in call.result
    assert len(jumps) > 2
