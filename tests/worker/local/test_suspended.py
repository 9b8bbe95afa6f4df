"""Turns that wait in this process, and in its store."""

import asyncio
import gc
import time
import weakref

import pytest
from support.eventually import wait_until, wait_until_async

from antiphon import Agent, Session, tool
from antiphon.errors import CorruptRecord, NotSuspended, ProviderRejected
from antiphon.input.values import now_ms
from antiphon.model import ToolCall
from antiphon.model.usage import Limits
from antiphon.session.runtime import local_runtime
from antiphon.stores import SQLiteStore
from antiphon.testing import script, tool_call
from antiphon_worker.local.serving import Server
from antiphon_worker.loop.costs import Meter


@pytest.fixture
def shop(tmp_path):
    class Shop:
        def __init__(self):
            self.ran = []

        def agent(self, *entries):
            @tool(approval=True)
            def pay(amount: int) -> str:
                """Pay."""
                self.ran.append(amount)
                return f"paid {amount}"

            @tool
            def look() -> str:
                """Look."""
                self.ran.append("look")
                return "seen"

            store = SQLiteStore(tmp_path / "sessions.db")
            return Agent(script(*entries), "any", tools=[pay, look], store=store)

    return Shop()


def waiting(turn):
    wait_until(lambda: turn.status() == "suspended", description="the turn is suspended")
    return turn.info().calls


def test_another_process_goes_on_with_a_turn_that_the_store_has(shop):
    entries = [tool_call("pay", amount=5), tool_call("look")], "Done."
    turn = shop.agent(*entries).session("s").submit("Go", metadata={"order": 7})
    [call] = waiting(turn)
    local_runtime().forget()  # as a new process begins
    session = shop.agent("Done.").session("s")
    assert [one["turn"]["turn_id"] for one in session.to_dict()["suspended"]] == [turn.id]
    again = session.turn(turn.id)
    assert (waiting(again), again.metadata) == ([call], {"order": 7})
    again.approve(call.call_id, by="ada")
    assert again.result(10).text == "Done."
    assert [r.text for m in session.messages for r in m.tool_results] == ["paid 5", "seen"]
    assert shop.ran == ["look", 5]
    assert "suspended" not in session.to_dict()
    assert session.turn(turn.id).status() == "finished"


def test_the_seconds_of_a_turn_are_those_in_which_it_ran(monkeypatch):
    spent = []

    class Watched(Meter):
        def __init__(self, *args, **options):
            spent.append(options["spent"])
            super().__init__(*args, **options)

    monkeypatch.setattr("antiphon_worker.local.own_app.Meter", Watched)

    @tool
    def work() -> str:
        """Work for some of the milliseconds in which seconds are counted."""
        started = time.monotonic()
        wait_until(lambda: time.monotonic() - started > 0.005)
        return "done"

    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    began = time.monotonic()
    lines = script([tool_call("work"), tool_call("pay")], "Done.")
    turn = Agent(lines, "any", tools=[work, pay], limits=Limits(seconds=60)).session("s").submit("Go")
    [call] = waiting(turn)
    ran = time.monotonic() - began
    turn.approve(call.call_id)
    turn.result(10)
    assert 0 <= spent[0] < spent[1] <= ran


def test_a_saved_session_has_its_suspended_turn_and_a_fork_has_not(shop):
    session = shop.agent(tool_call("pay", amount=5), "Done.").session("s")
    turn = session.submit("Go")
    [call] = waiting(turn)
    data, fork = session.to_dict(), session.fork("t")
    assert "suspended" not in fork.to_dict()
    turn.reject(call.call_id)
    turn.result(10)
    local_runtime().forget()
    data["session_id"] = "u"
    restored = Session.from_dict(data, shop.agent("Done again."))
    again = restored.turn(turn.id)
    again.approve(call.call_id)
    assert again.result(10).text == "Done again."
    assert shop.ran == [5]
    with pytest.raises(CorruptRecord, match="suspended"):
        Session.from_dict(data | {"suspended": [1]}, shop.agent())


@pytest.mark.parametrize("way", ["cancel", "fail", "leave"])
def test_a_turn_that_has_ended_is_not_in_the_store(way, shop):
    after = [KeyError("no")] if way == "fail" else []
    session = shop.agent(tool_call("pay", amount=5), *after, "Next.").session("s")
    if way == "leave":
        for event in session.stream("Go"):
            if event.type == "turn_suspended":
                assert session.to_dict()["suspended"]
                break
    else:
        turn = session.submit("Go")
        [call] = waiting(turn)
        turn.cancel() if way == "cancel" else turn.approve(call.call_id)
        wait_until(lambda: turn.status() in ("cancelled", "failed"), description="the turn has ended")
    assert session.run("Next").text == "Next."
    assert "suspended" not in session.to_dict()


def test_the_reader_of_a_turn_decides_about_it(shop):
    session = shop.agent(tool_call("pay", amount=5), "Done.").session("s")
    types = []
    for event in session.stream("Go"):
        types.append(event.type)
        if event.type == "turn_suspended":
            turn = session.turn(event.turn_id)
            assert turn.info().calls == event.calls
            turn.approve(event.calls[0].call_id)
    assert types[-1] == "turn_finished"
    with pytest.raises(NotSuspended):
        turn.approve("another")
    assert shop.ran == [5]


def inbox(session_id):
    session = local_runtime().cell().session(session_id)
    return session.inbox if session else []


async def test_nobody_looks_for_the_worker_of_a_turn_of_this_process(monkeypatch):
    looked = []

    async def look(cell, turn_id):
        looked.append(turn_id)

    monkeypatch.setattr("antiphon.redis.unserved.FIRST_LOOK_SECONDS", 0)
    monkeypatch.setattr("antiphon.redis.unserved.warn_if_unserved", look)
    go_on = asyncio.Event()

    @tool
    async def wait() -> str:
        await go_on.wait()
        return "waited"

    agent = Agent(script(ToolCall("", "wait"), "one", "two"), "any", tools=[wait])
    first = asyncio.create_task(agent.session("s").run_async("a"))
    await wait_until_async(lambda: len(inbox("s")) == 1)
    second = asyncio.create_task(agent.session("s").run_async("b"))
    await wait_until_async(lambda: len(inbox("s")) == 2)
    await asyncio.sleep(0)
    go_on.set()
    assert [(await one).text for one in (first, second)] == ["one", "two"]
    assert looked == []


def used(agent):
    """End turns in every way after which they cannot run again."""
    session = agent.session("s")
    session.run("finished")
    session.submit("cancelled", delay=3600).cancel()
    for _ in range(2):
        session.submit("repeated", key="k").result(timeout=20)
    return weakref.ref(agent)


def test_turns_that_cannot_run_again_do_not_keep_their_agent():
    agent = used(Agent("scripted", "any"))

    def is_gone():
        gc.collect()
        return agent() is None

    wait_until(is_gone)


def test_a_failed_turn_keeps_its_agent_to_run_again():
    turn = Agent(script(ProviderRejected("no"), "yes"), "any").session("s").submit("a")
    with pytest.raises(ProviderRejected):
        turn.result(timeout=20)
    gc.collect()
    turn.requeue()
    assert turn.result(timeout=20).text == "yes"


def test_a_cancelled_turn_leaves_nothing_that_waits_for_its_time():
    Agent("scripted", "any").session("s").submit("a", delay=3600).cancel()
    wait_until(lambda: not local_runtime()._servers)


def test_a_turn_is_due_in_time_when_the_clock_is_put_back(monkeypatch):
    turn = Agent("scripted", "any").session("s").submit("a", delay=0.3)
    before = turn.info()
    monkeypatch.setattr("antiphon_worker.local.cell.now_ms", lambda: now_ms() - 3_600_000)
    assert turn.result(timeout=20).text == "You said: a"
    after = turn.info()
    assert before.due <= after.started < after.created + 60_000


async def test_a_turn_that_is_requeued_while_its_server_ends_runs(monkeypatch):
    run, submitted = Server.run, asyncio.get_running_loop().create_future()

    async def run_and_requeue(server):
        await run(server)
        turn = await submitted
        if await turn.status() == "failed":
            await turn.requeue()

    monkeypatch.setattr(Server, "run", run_and_requeue)
    session = Agent(script(ProviderRejected("no"), "yes"), "any").session_async("s")
    turn = await session.submit("a")
    submitted.set_result(turn)
    await wait_until_async(lambda: _is_finished(turn), 20, "it has run again")
    assert (await turn.result(timeout=20)).text == "yes"


async def _is_finished(turn):
    return await turn.status() == "finished"
