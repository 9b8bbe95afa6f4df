"""Agents as tools: each call is a turn of its own, and a tree of turns ends as one (G21)."""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack
from itertools import count
from types import SimpleNamespace

import pytest
from redis import Redis
from support.broken_off import BrokenOff
from support.ensemble import agent_spec
from support.eventually import wait_until_async
from support.here import running_worker
from support.leaks import MARKER, dumped, holds
from support.places import on_workers, until
from support.source_tree import ROOT
from support.trees import DEPTH, WIDTH, tree, turns_of

from antiphon import Agent, tool
from antiphon.cli.main import main
from antiphon.client import AsyncClient
from antiphon.errors import AlreadyDecided, InvalidTool, NotSuspended, TurnDeleted, UsageError, WrongTenant
from antiphon.events import decode_event
from antiphon.input.request import ParentTurn, TurnRequest
from antiphon.testing import script, tool_call
from antiphon_worker.app import App
from antiphon_worker.process import children as module
from antiphon_worker.process.lease import Stop
from antiphon_worker.process.outcomes import Cancelled
from antiphon_worker.process.publisher import TurnSink
from antiphon_worker.process.turn import TurnAttempt

pytestmark = pytest.mark.one_server

TREES = int(os.environ.get("TREES", "100"))
ASK = tool_call("research", input="When is Kyoto best?")


class Gate:
    """A tool that waits until the test opens it."""

    def __init__(self):
        self.open, self.entered = asyncio.Event(), 0

        @tool
        async def wait() -> str:
            """Wait."""
            self.entered += 1
            await self.open.wait()
            return "open"

        self.tool = wait


class Desk:
    """``writer`` asks ``research``. ``said`` and ``heard`` are the models of both."""

    def __init__(self, *said, answers=("In November.",), tools=(), **options):
        self.said = script(*(said or (ASK, "Go in November.")))
        self.heard = script(*answers, repeat=True)
        self.research = Agent(self.heard, "any", name="research", tools=tools)
        self.writer = Agent(self.said, "any", name="writer", tools=[self.research.as_tool(**options)])


def children_in(events, kinds=("turn_queued", "turn_finished")):
    """The begin and the end of the children directly below a turn."""
    return [
        (event.call_id, event.event["type"])
        for event in events
        if event.type == "child_event" and event.parent_id == event.turn_id and event.event["type"] in kinds
    ]


async def result_of(desk, place, **options):
    """The result of the only tool call of a turn."""
    async with place(desk.writer) as session_of:
        response = await session_of("s", **options).run("Plan it.")
    [call] = response.tool_calls
    return call


async def test_a_call_is_a_turn_of_its_own_while_the_parent_is_suspended(place):
    gate, events = Gate(), []
    desk = Desk(answers=(tool_call("wait"), "In November."), tools=[gate.tool])
    async with place(desk.writer) as session_of:
        session = session_of("s", tenant="acme")
        async for event in session.stream("Plan it."):
            events.append(event)
            if event.type == "turn_sleeping":
                gate.open.set()
        response = (await session.messages())[-1]
        [child] = await session.children()
    assert response.text == "Go in November."
    kinds = [event.type for event in events]
    assert kinds.index("turn_sleeping") < kinds.index("turn_resumed") < kinds.index("tool_result")
    assert [event.seq for event in events] == list(range(events[0].seq, events[0].seq + len(events)))
    assert children_in(events) == [("call_1", "turn_queued"), ("call_1", "turn_finished")]
    begun, *_, ended = [event for event in events if event.type == "child_event"]
    assert (begun.agent, begun.depth, begun.event["session_id"]) == ("research", 1, child)
    assert ended.event["response"]["text"] == "In November."
    assert [one.text for one in desk.heard.requests[0].messages] == ["When is Kyoto best?"]


async def test_a_child_has_the_tenant_and_the_user_of_its_parent_and_is_in_no_list(redis_url):
    desk = Desk()
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer", tenant="acme", user="ada")
        await turn.result(20)
        assert [one.session_id async for one in client.sessions(tenant="acme")] == ["s"]
        [child] = [one async for one in client.sessions(tenant="acme", parent="s")]
        [message, _] = (await client.snapshot(child.session_id)).messages
        assert message.by == "ada"


async def test_children_live_on_other_cells_than_their_parent(redis_url):
    urls = [f"{redis_url.rpartition('/')[0]}/{number}" for number in (1, 2)]
    desk = Desk([ASK] * 8, "Done.")
    async with AsyncClient(urls) as client, AsyncExitStack() as workers:
        for url in urls:
            app = App(agents=[desk.writer])
            await workers.enter_async_context(running_worker(url, app, cells=",".join(urls)))
        turn = await client.submit("s", "Plan it.", agent="writer")
        assert [call.result for call in (await turn.result(20)).tool_calls] == ["In November."] * 8
        cells = {client.connections.cell_of_session(one).name for one in await client.session("s").children()}
        assert len(cells) == 2


async def test_several_children_run_in_parallel(place):
    gate = Gate()
    desk = Desk([ASK, ASK, ASK], "Done.", answers=(_wait_first,), tools=[gate.tool])
    async with place(desk.writer) as session_of:
        turn = await session_of("s").submit("Plan it.")

        async def all_wait():
            return gate.entered == 3

        await wait_until_async(all_wait, 20, "all children wait")
        await until(turn, "suspended")
        gate.open.set()
        response = await turn.result(20)
    assert [call.result for call in response.tool_calls] == ["In November."] * 3


def _wait_first(request):
    return "In November." if request.messages[-1].role == "tool" else tool_call("wait")


async def test_a_child_that_fails_is_an_error_of_the_tool(place):
    desk = Desk(answers=(tool_call("nothing"),))
    desk.research.max_steps = 2
    call = await result_of(desk, place)
    assert call.is_error
    assert call.result.startswith("The agent research failed (step_limit): ")


async def test_a_child_that_takes_too_long_is_stopped(place):
    gate = Gate()
    desk = Desk(answers=(tool_call("wait"),), tools=[gate.tool], timeout=0.3)
    async with place(desk.writer) as session_of:
        session = session_of("s")
        [call] = (await session.run("Plan it.")).tool_calls
        assert call.is_error
        assert "did not answer in time" in call.result
        [child] = await session.children()
        await _stopped(session_of(child))


async def _stopped(session):
    """A child whose tool waits for ever can only be cancelled."""

    async def idle():
        return (await session.status()).state == "idle"

    await wait_until_async(idle, 20, "the child has ended")
    assert await session.messages() == []


async def test_a_cancelled_parent_cancels_its_children(place):
    gate = Gate()
    desk = Desk(answers=(tool_call("wait"),), tools=[gate.tool])
    async with place(desk.writer) as session_of:
        session = session_of("s")
        turn = await session.submit("Plan it.")
        await until(turn, "suspended")
        [child] = await session.children()
        await turn.cancel()
        await until(turn, "cancelled")
        await _stopped(session_of(child))


async def test_a_child_notices_that_its_parent_has_ended(redis_url, monkeypatch):
    async def nothing(*args):
        """A worker that died before it had cancelled the children."""

    monkeypatch.setattr(module, "stop_children", nothing)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    gate = Gate()
    desk = Desk(answers=(tool_call("wait"),), tools=[gate.tool])
    async with on_workers(desk.writer, redis_url) as session_of:
        session = session_of("s")
        turn = await session.submit("Plan it.")
        await until(turn, "suspended")
        await turn.cancel()
        [child] = await session.children()
        await _stopped(session_of(child))


async def test_a_parent_finds_the_end_of_its_child_without_the_event(place, monkeypatch):
    async def lost(*args, **more):
        """A worker that died before it had sent the event."""

    monkeypatch.setattr(module, "tell_waiting", lost)
    monkeypatch.setattr(module, "FIRST_WAIT", 0.2)
    assert (await result_of(Desk(), place)).result == "In November."


async def test_an_event_that_somebody_else_sends_ends_no_wait(redis_url, monkeypatch):
    gate = Gate()
    desk = Desk(answers=(_wait_first,), tools=[gate.tool])
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer")
        await until(turn, "suspended")
        events = [event async for event in _so_far(turn)]
        child = next(event.child_id for event in events if event.type == "child_event")
        assert await client.send_event(module.event_of(child), {"forged": True}) == 1
        await until(turn, "suspended")
        gate.open.set()
        assert (await turn.result(20)).tool_calls[0].result == "In November."


async def _so_far(turn):
    async for event in turn.stream(after=0):
        yield event
        if event.type == "turn_sleeping":
            return


async def test_agents_are_nested_three_deep(place):
    agent = Agent(script("The end.", repeat=True), "any", name="a4")
    for name in ("a3", "a2", "a1", "writer"):
        call = tool_call(agent.name, input="Go on.")
        lines = script(call, lambda request: request.messages[-1].tool_results[0].text, repeat=True)
        agent = Agent(lines, "any", name=name, tools=[agent.as_tool()])
    desk = Desk()
    desk.writer = agent
    async with place(desk.writer) as session_of:
        response = await session_of("s").run("Go.")
    assert "nested 3 deep" in response.text


def asking(text):
    """Approved, a call of this tool says ``text``."""

    @tool(approval=True)
    def refund() -> str:
        """Refund."""
        return text

    return refund


def _after_its_tool(request):
    last = request.messages[-1]
    return last.tool_results[0].text if last.role == "tool" else tool_call("refund")


async def _pending(turn, count):
    async def there():
        calls = (await turn.info()).calls
        return len(calls) == count and calls

    return await wait_until_async(there, 20, f"{count} calls are pending")


async def test_the_events_of_a_child_come_while_its_parent_is_suspended(place):
    gate = Gate()
    desk = Desk(answers=(_wait_first,), tools=[gate.tool])
    async with place(desk.writer) as session_of:
        kinds = []
        async for event in session_of("s").stream("Plan it."):
            kinds.append(f"child {event.event['type']}" if event.type == "child_event" else event.type)
            if kinds[-1] == "turn_sleeping":
                gate.open.set()
    assert not [kind for kind in kinds if kind.startswith("child") and kind.endswith("_delta")]
    assert "child turn_finished" in kinds[kinds.index("turn_sleeping") : kinds.index("turn_resumed")]


async def test_deltas_of_a_child_come_on_request(place):
    desk = Desk(deltas=True)
    async with place(desk.writer) as session_of:
        events = [event async for event in session_of("s").stream("Plan it.")]
    said = [event.event["text"] for event in events if event.type == "child_event" and "text" in event.event]
    assert "".join(said) == "In November."


async def test_a_stream_has_the_events_of_the_whole_tree_once_and_in_order(place):
    desk = Desk()
    desk.writer = tree("writer")
    async with place(desk.writer) as session_of:
        events = [event async for event in session_of("s").stream("Go.")]
    assert [event.seq for event in events] == list(range(events[0].seq, events[0].seq + len(events)))
    _check_tree(events)


def _check_tree(events):
    by_child = {}
    for event in events:
        if event.type == "child_event":
            by_child.setdefault(event.child_id, []).append(event)
    depths = Counter(found[0].depth for found in by_child.values())
    assert depths == {depth: WIDTH**depth for depth in range(1, DEPTH + 1)}
    for child, found in by_child.items():
        seqs = [event.event["seq"] for event in found]
        assert seqs == sorted(set(seqs)), f"{child} has an event twice or in another order"
        kinds = [event.event["type"] for event in found]
        assert (kinds[0], kinds[-1], kinds.count("turn_finished")) == ("turn_queued", "turn_finished", 1)
        assert {event.event["turn_id"] for event in found} == {child}
        assert found[0].parent_id == (events[0].turn_id if found[0].depth == 1 else found[0].parent_id)
        assert found[0].depth == 1 or found[0].parent_id in by_child


async def test_two_children_that_wait_for_approval_are_answered_at_the_parent(place):
    desk = Desk([ASK, ASK], "Done.", answers=(_after_its_tool,), tools=[asking("refunded")])
    async with place(desk.writer) as session_of:
        turn = await session_of("s").submit("Plan it.")
        first, second = await _pending(turn, 2)
        assert (first.name, first.kind) == ("refund", "approval")
        with pytest.raises(UsageError, match="Several turns below"):
            await turn.approve("call_1" if first.call_id.endswith(":call_1") else first.call_id.split(":")[1])
        await turn.approve(first.call_id, by="ada")
        with pytest.raises(AlreadyDecided):
            await turn.approve(first.call_id)
        await turn.reject(second.call_id, reason="Too expensive.")
        response = await turn.result(20)
        assert (await turn.info()).calls == []
    assert sorted("refunded" in call.result for call in response.tool_calls) == [False, True]


async def test_the_only_call_of_that_id_is_answered_by_the_id_alone(place):
    desk = Desk(answers=(_after_its_tool,), tools=[asking("refunded")])
    async with place(desk.writer) as session_of:
        turn = await session_of("s").submit("Plan it.")
        [call] = await _pending(turn, 1)
        await turn.approve(call.call_id.split(":")[1])
        assert (await turn.result(20)).tool_calls[0].result == "refunded"
        with pytest.raises(NotSuspended):
            await turn.approve("unknown")


async def test_a_call_that_was_decided_is_not_shown_at_the_parent_while_the_child_waits_for_another(place):
    def two(request):
        last = request.messages[-1]
        return "Done." if last.role == "tool" else [tool_call("refund"), tool_call("refund")]

    desk = Desk(answers=(two,), tools=[asking("refunded")])
    async with place(desk.writer) as session_of:
        turn = await session_of("s").submit("Plan it.")
        first, second = await _pending(turn, 2)
        await turn.approve(first.call_id)
        assert [call.call_id for call in (await turn.info()).calls] == [second.call_id]
        await turn.approve(second.call_id)
        assert (await turn.info()).calls == []
        assert (await turn.result(20)).tool_calls[0].result == "Done."


async def test_a_call_that_runs_leaves_the_id_of_another_one_that_waits(place):
    runs = asyncio.Event()

    @tool(approval=True)
    async def refund() -> str:
        """Refund."""
        await runs.wait()
        return "refunded"

    desk = Desk([ASK, ASK], "Done.", answers=(_after_its_tool,), tools=[refund])
    async with place(desk.writer) as session_of:
        turn = await session_of("s").submit("Plan it.")
        first, second = await _pending(turn, 2)
        await turn.approve(first.call_id)
        async for event in turn.stream():
            if event.type == "child_event" and event.event["type"] == "turn_resumed":
                break
        await turn.reject(second.call_id.partition(":")[2])
        runs.set()
        response = await turn.result(20)
    assert sorted("refunded" in call.result for call in response.tool_calls) == [False, True]


async def test_a_call_two_levels_below_is_answered_at_the_turn_above_all(place):
    deep = Agent(script(_after_its_tool, repeat=True), "any", name="deep", tools=[asking("refunded")])
    desk = Desk()
    middle = script(tool_call("deep", input="Go."), "Middle.", repeat=True)
    desk.research = Agent(middle, "any", name="research", tools=[deep.as_tool()])
    desk.writer = Agent(desk.said, "any", name="writer", tools=[desk.research.as_tool()])
    async with place(desk.writer) as session_of:
        turn = await session_of("s").submit("Plan it.")
        [call] = await _pending(turn, 1)
        await turn.approve(call.call_id)
        assert (await turn.result(20)).text == "Go in November."


async def test_the_functions_of_the_caller_decide_about_the_calls_of_children(place):
    desk = Desk([ASK, ASK], "Done.", answers=(_after_its_tool,), tools=[asking("refunded")])
    asked = []

    def approve(call):
        asked.append(call.call_id)
        return True

    async with place(desk.writer) as session_of:
        response = await session_of("s").run("Plan it.", on_approval=approve)
    assert [call.result for call in response.tool_calls] == ["refunded", "refunded"]
    assert len(asked) == len(set(asked)) == 2


async def test_a_cancelled_child_asks_nothing_at_its_parent(redis_url):
    desk = Desk(answers=(_after_its_tool,), tools=[asking("refunded")])
    async with on_workers(desk.writer, redis_url) as session_of:
        session = session_of("s")
        turn = await session.submit("Plan it.")
        await _pending(turn, 1)
        [child] = await session.children()
        await session_of(child).cancel()
        assert (await turn.result(60)).tool_calls[0].is_error
        assert (await turn.info()).calls == []


@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
async def test_a_tree_broken_off_at_any_write_ends_like_one_that_never_was(redis_url, monkeypatch, stored):
    writes = BrokenOff(monkeypatch, stored=stored)
    for at in count():
        writes.at(at)
        desk = Desk([ASK, ASK], "Done.", timeout=3600)  # of which the next attempt has less left
        desk.said.entries, desk.said.repeat = [_by_results], True
        async with on_workers(desk.writer, redis_url) as session_of:
            session = session_of(f"s{at}")
            events = [event async for event in session.stream("Plan it.")]
            assert (await session.messages())[-1].text == "Done."
            assert len(await session.children()) == 2
        assert sorted(children_in(events)) == [
            ("call_1", "turn_finished"), ("call_1", "turn_queued"),
            ("call_2", "turn_finished"), ("call_2", "turn_queued"),
        ], at  # fmt: skip
        assert len(desk.heard.requests) == 2
        if writes.count < at:
            break
    assert at > 6


def _by_results(request):
    return "Done." if request.messages[-1].role == "tool" else [ASK, ASK]


async def test_a_worker_killed_with_a_child_goes_on_with_it(processes, ensemble, capsys):
    supervised = ensemble.supervisor(processes=2)
    supervised.ready(2)
    agent = agent_spec(name="parent", tools=["understudy"])
    turn = await ensemble.submit("s", "tool:understudy die*1", agent=agent)
    [call] = (await turn.result(30)).tool_calls
    assert not call.is_error
    assert len(ensemble.stage.notes("dies")) == 1
    assert len(ensemble.stage.notes("asked", text="die*1")) == 2
    assert len(ensemble.stage.notes("asked", text="tool:understudy die*1")) == 2
    events = await ensemble.events("s")
    assert children_in(events) == [("call_1", "turn_queued"), ("call_1", "turn_finished")]
    await ensemble.whole("s")
    await asyncio.to_thread(main, ["explain", turn.id, "--json", "--redis-url", ensemble.url])
    [child] = json.loads(capsys.readouterr().out)["children"]
    assert (child["agent"], child["status"]) == ("understudy", "finished")
    assert supervised.process.terminate() == 0


@pytest.mark.nightly
@pytest.mark.timeout(600 + 4 * TREES)
async def test_trees_of_depth_three_end_as_one_while_workers_are_killed(processes, redis_url):
    env = {"PYTHONPATH": str(ROOT / "tests")}
    worker = processes.worker(redis_url, "--app", "support.trees:app", "--processes", "3", env=env)
    worker.wait_for_output("takes turns")
    async with AsyncClient(redis_url) as client:
        turns = [await client.submit(f"s{number}", "Go.") for number in range(TREES)]
        ended = asyncio.gather(*(turn.result(240 + 4 * TREES) for turn in turns))
        killed = 0
        while not ended.done():
            os.kill(random.choice(worker.children()), signal.SIGKILL)
            killed += 1
            await asyncio.wait([ended], timeout=1.5)
        for response in await ended:
            assert response.text == " ".join(["leaf"] * WIDTH**DEPTH)
        for session in [f"s{number}" for number in range(TREES)]:
            await _whole(client, session, DEPTH)
        for turn, response in zip(turns, await ended, strict=True):
            found = await turn.tree()
            below = [one for depth, one in turns_of(found) if depth]
            assert len(below) == sum(WIDTH**depth for depth in range(1, DEPTH + 1))
            assert found.total_usage == sum((one.usage for one in below), response.usage)
    assert killed > 1


async def _whole(client, session, depth):
    """Each child of a session has begun and ended once, in a stream without a gap, and so on below it."""
    cell = client.connections.cell_of_session(session)
    entries = await cell.redis.xrange(cell.keys.events(session))
    events = [decode_event(fields[b"e"]) for _, fields in entries]
    if depth == DEPTH:
        _check_tree(events)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    children = await client.session(session).children()
    assert len(children) == (WIDTH if depth else 0)
    assert Counter(kind for _, kind in children_in(events)) == Counter(
        {"turn_queued": len(children), "turn_finished": len(children)}
    )
    for child in children:
        await _whole(client, child, depth - 1)


def test_what_cannot_be_a_tool_is_refused():
    with pytest.raises(UsageError, match="needs an agent with a name"):
        Agent("scripted", "any").as_tool()
    with pytest.raises(UsageError, match="timeout="):
        Agent("scripted", "any", name="a").as_tool(timeout=0)
    with pytest.raises(InvalidTool):
        Agent("scripted", "any", name="a").as_tool(name="two words")
    with pytest.raises(UsageError, match="only as a tool of a turn"):
        asyncio.run(Agent("scripted", "any", name="a").as_tool()("Hello"))


def test_the_revision_has_the_agent_that_a_tool_runs():
    def revision(**options):
        research = Agent("scripted", "any", name=options.pop("agent", "research"))
        tool = research.as_tool(name="ask", description="Ask.", **options)
        return Agent("scripted", "any", name="writer", tools=[tool]).revision

    assert len({revision(), revision(agent="other"), revision(timeout=5)}) == 3


def stored(redis_url):
    with Redis.from_url(redis_url) as redis:
        return [key for key, data in dumped(redis).items() if holds(data)]


@pytest.mark.parametrize(
    "whom", ["delete", {"session": "s"}, {"tenant": "acme"}, {"user": "ann"}, "expired"], ids=str
)
async def test_what_sub_agents_have_read_and_said_is_erased_with_the_session(redis_url, whom):
    desk = Desk(
        tool_call("research", input=MARKER), MARKER, answers=(tool_call("deeper", input=MARKER), MARKER)
    )
    deeper = Agent(script(MARKER, repeat=True), "any", name="deeper")
    desk.research = Agent(script(tool_call("deeper", input=MARKER), MARKER), "any", name="research",
                          tools=[deeper.as_tool()])  # fmt: skip
    desk.writer = Agent(desk.said, "any", name="writer", tools=[desk.research.as_tool()])
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer", tenant="acme", user="ann")
        await turn.result(20)
        own = client.session("s", tenant="acme").child(session_id="child-of-a-caller")
        await own.add_message({"role": "user", "content": "Hello"})
        [child] = [one for one in await client.session("s").children() if one != own.session_id]
        assert len(await client.session(child).children()) == 1
        exported = [one async for one in client.export(session="s")]
        assert len({one["session_id"] for one in exported}) == 3
        assert stored(redis_url)
        if whom == "delete":
            assert await client.session("s", tenant="acme").delete()
            assert await client.session("s").children() == []
        elif whom == "expired":
            with Redis.from_url(redis_url) as redis:
                redis.delete("ant:session:s", "ant:history:s", "ant:events:s", "ant:turns:s")
            assert len((await client.forget(session="s")).sessions) == 2
        else:
            assert (await client.forget(**whom)).left == []
        assert stored(redis_url) == []
        if whom in ("delete", {"session": "s"}):
            assert [one.text for one in await own.messages()] == ["Hello"], "which a caller has made"


async def test_a_call_whose_sub_agent_was_deleted_has_an_error(redis_url):
    gate = Gate()
    desk = Desk(answers=(tool_call("wait"), "Never."), tools=[gate.tool])
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer")
        await wait_until_async(lambda: gate.entered, 20)
        [child] = await client.session("s").children()
        assert await client.session(child).delete()
        response = await turn.result(20)
    assert response.text == "Go in November."
    [call] = response.tool_calls
    assert call.is_error


async def test_a_session_whose_sub_agent_runs_is_deleted(redis_url):
    gate = Gate()
    desk = Desk(
        tool_call("research", input=MARKER), MARKER, answers=(tool_call("wait"), MARKER), tools=[gate.tool]
    )
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", MARKER, agent="writer")
        await wait_until_async(lambda: gate.entered, 20)
        assert await client.session("s").delete()
        assert stored(redis_url) == []
        gate.open.set()
        with pytest.raises(TurnDeleted):
            await turn.info()


def attempt_at_a_child(client, stop=None):
    parent = ParentTurn("p", "a" * 32, 1, 1)
    turn = SimpleNamespace(turn_id="b" * 32, session_id="child", run=1, tenant="", fence="1-a")
    request = TurnRequest([], agent="research", parent=parent)
    lease = SimpleNamespace(stop=stop)
    return module.Kin(client.connections.cells, turn, request, lease, TurnSink(turn, lease, None))


@pytest.mark.lasting_keys("*")
async def test_an_attempt_at_a_child_that_raises_leaves_no_task(redis_url, monkeypatch):
    raised = []
    conclude = TurnAttempt._end

    async def broken(self, outcome):
        if self.kin is not None:
            raised.append(self.kin)
            raise RuntimeError("A defect.")
        return await conclude(self, outcome)

    monkeypatch.setattr(TurnAttempt, "_end", broken)
    desk = Desk()
    async with on_workers(desk.writer, redis_url) as session_of:
        await session_of("s").submit("Plan it.")
        await wait_until_async(lambda: raised, 20)
        await wait_until_async(raised[0]._task.done, 20, "its task has ended")


@pytest.mark.lasting_keys("ant:*")
async def test_the_end_of_a_child_for_which_nobody_waits_starts_no_turn_of_a_schedule(redis_url):
    async with AsyncClient(redis_url) as client:
        await client.schedules("s").set("all", "Whatever comes.", on="*", agent="research")
        kin = attempt_at_a_child(client, stop=Stop.SUPERSEDED)
        kin.leave()
        await kin.ended(Cancelled("Stopped."))
        assert [one async for one in client.turns("s")] == []
        assert await client.send_event("child:of-somebody") == 1


async def test_sessions_that_name_each_other_as_parents_are_deleted(redis_url):
    names = [f"child-{digit * 24}" for digit in "ab"]
    async with AsyncClient(redis_url) as client:
        for parent, child in (names, names[::-1]):
            session = client.session(parent).child(session_id=child)
            await session.add_message({"role": "user", "content": "Hello"})
            assert await client.session(parent).children() == [child]
        assert await client.session(names[0]).delete()
        assert [one async for one in client.sessions(children=True)] == []


async def test_no_other_tenant_takes_a_place_in_a_tree(redis_url):
    name = f"child-{'b' * 24}"
    async with AsyncClient(redis_url) as client:
        own = client.session("s", tenant="acme", variables={"secret": MARKER})
        await own.add_message({"role": "user", "content": "Hello"})
        other = client.session("s", tenant="other").child(session_id=name)
        with pytest.raises(WrongTenant):
            await other.add_message({"role": "user", "content": "Hello"})
        assert [one.session_id async for one in client.sessions(children=True)] == ["s"]
        with Redis.from_url(redis_url) as redis:  # as releases before this one have left it
            redis.hset(f"ant:session:{name}", mapping={"created": 1, "tenant": "other", "parent": "s"})
            redis.expire(f"ant:session:{name}", 60)
            redis.hset("ant:session:s", "children", json.dumps([name]))
        exported = [one async for one in client.export(session="s", tenant="acme")]
        assert {one["session_id"] for one in exported} == {"s"}
        assert (await client.forget(session="s", tenant="acme")).sessions == ["s"]
        with Redis.from_url(redis_url) as redis:
            assert redis.exists(f"ant:session:{name}")


async def test_forgetting_a_session_erases_no_session_of_another_tenant(redis_url):
    name = f"child-{'c' * 24}"
    async with AsyncClient(redis_url) as client:
        await client.session("s", tenant="acme").add_message({"role": "user", "content": "Hello"})
        await client.session(name, tenant="other").add_message({"role": "user", "content": "Hello"})
        with Redis.from_url(redis_url) as redis:
            redis.hset("ant:session:s", "children", json.dumps([name]))
        assert (await client.forget(session="s")).sessions == ["s"]
        assert len(await client.session(name, tenant="other").messages()) == 1


async def test_a_child_is_submitted_to_go_first(redis_url, redis):
    async with on_workers(Desk().writer, redis_url) as session_of:
        turn = await session_of("s").submit("Plan it.")
        assert (await turn.result()).text == "Go in November."
    front = {key: redis.hget(key, "front") for key in redis.keys("ant:turn:*")}
    assert front.pop(f"ant:turn:{turn.id}".encode()) is None
    assert [*front.values()] == [b"1"]
