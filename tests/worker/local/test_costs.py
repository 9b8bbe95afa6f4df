"""What turns of this process cost: their calls, and what they leave in its memory, which must not grow for months."""

import asyncio
import gc
import sys
from collections import Counter

import pytest
from support.calls import uncollected
from support.eventually import wait_until

from antiphon import Agent, tool
from antiphon.errors import ProviderRejected, TurnNotFound
from antiphon.session.runtime import local_runtime
from antiphon.stores import MemoryStore
from antiphon.testing import script, tool_call

KEPT = 16
ROUNDS = 12
# Calls of functions, Python's and C's, from a submission to its answer.
MOST_CALLS_A_TURN = 1_640
PLAIN = (dict, list, tuple, set, bytes, str)


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch):
    monkeypatch.setattr("antiphon_worker.local.moves.KEPT_ENDED", KEPT)
    monkeypatch.setattr("antiphon_worker.local.stored.RECENT", KEPT)
    monkeypatch.setattr("antiphon_worker.local.runtime.RECENT_STORES", KEPT)


def held():
    """How many objects of each class the runtime holds, directly or not."""
    runtime = local_runtime()
    wait_until(lambda: not runtime._servers, description="no turn is open")
    gc.collect()
    places = [runtime._deployments, runtime._servers, runtime._tasks]
    found = {id(one) for one in places}
    counts = Counter()
    while places:
        for one in gc.get_referents(places.pop()):
            ours = type(one).__module__.startswith("antiphon")
            if id(one) not in found and (ours or type(one) in PLAIN):
                found.add(id(one))
                counts[type(one).__name__] += 1
                places.append(one)
    return counts


def use(store):
    """Turns of all ends, each with an agent of its own."""

    @tool
    async def wait() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    def session(*answers, name="s", tools=()):
        return Agent(script(*answers), "any", tools=tools, store=store).session(name)

    begun = []
    session("a").run("finished")
    with pytest.raises(ProviderRejected):
        session().run("failed")
    session().submit("cancelled before it has begun", delay=3600).cancel()
    turn = session(tool_call("wait"), tools=[wait]).submit("cancelled")
    wait_until(lambda: begun)
    turn.cancel()
    wait_until(lambda: turn.status() == "cancelled")
    for _ in range(2):
        session("b").submit("repeated", key="k").result(timeout=20)
    other = session("c", name="other")
    other.run("of a session that is deleted")
    other.fork("copy")
    for one in (other, session(name="copy")):
        one.delete()
    kept = session()
    kept.rewind(kept.messages[0].id)


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["memory", "store"])
def test_memory_does_not_grow_with_the_number_of_turns(store):
    counts = []
    local_runtime().cell(store).transitions.most_events = KEPT
    for _ in range(3):
        for _ in range(ROUNDS):
            use(store)
        counts.append(held())
    assert counts[2] == counts[1]


def test_a_turn_that_others_have_followed_for_long_is_forgotten():
    agent = Agent("scripted", "any")
    first = agent.session("s").submit("a")
    first.result(timeout=20)
    for _ in range(KEPT):
        assert first.status() == "finished"
        agent.session().run("b")
    with pytest.raises(TurnNotFound):
        first.status()


def test_the_sessions_of_a_store_that_is_not_used_leave_memory_and_open_turns_stay():
    agent = Agent("scripted", "any", store=MemoryStore())
    later, kept = agent.session("s").submit("a", delay=3600), agent.session("s")
    for _ in range(2 * KEPT):
        Agent("scripted", "any", store=MemoryStore()).session("s").run("b")
    assert len(local_runtime()._deployments) <= KEPT + 1
    assert later.status() == "queued"
    assert kept.turn(later.id).cancel() == "cancelled"


def test_sessions_of_a_store_that_are_not_used_leave_memory_and_open_ones_stay():
    store = MemoryStore()
    agent = Agent("scripted", "any", store=store)
    later = agent.session("open").submit("a", delay=3600)
    for number in range(3 * KEPT):
        agent.session(f"s{number}").run("a")
    cell = local_runtime().cell(store)
    assert [len(kept) <= KEPT + 1 for kept in (cell.transitions.sessions, cell._stamps, cell._recent)] == [
        True
    ] * 3
    assert len(agent.session("s0").messages) == 2
    assert later.cancel() == "cancelled"


async def run_turns(number):
    agent = Agent("scripted", "any")
    for _ in range(number):
        await agent.session().run_async("a")


async def calls_of_turns(number):
    """How often the turns call functions."""
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event in ("call", "c_call")

    with uncollected():
        sys.setprofile(count)
        try:
            await run_turns(number)
        finally:
            sys.setprofile(None)
    return calls


async def test_a_turn_takes_few_calls(monkeypatch):
    """Where nothing has imported OpenTelemetry, as other tests may have: with it, each submission asks for its span."""
    monkeypatch.delitem(sys.modules, "opentelemetry.propagate", raising=False)
    await run_turns(20)
    found = [await calls_of_turns(20) / 20 for _ in range(3)]
    assert min(found) <= MOST_CALLS_A_TURN


async def test_a_turn_leaves_nothing_to_the_garbage_collector():
    await run_turns(20)
    gc.collect()
    gc.disable()
    try:
        found = []
        for _ in range(3):  # threads of other tests may leave something, too
            await run_turns(20)
            found.append(gc.collect())
        assert min(found) < 20
    finally:
        gc.enable()
