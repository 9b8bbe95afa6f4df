"""Tools and turn functions that run agents: ``context.run_agent``, in any order with steps, sleeps and model calls."""

import asyncio
from itertools import count

import pytest
from support import places
from support.broken_off import BrokenOff
from support.eventually import wait_until_async
from support.here import running_worker
from support.places import until

from antiphon import Agent, Message, tool
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, StepFailed, UsageError
from antiphon.ext.turns import ModelAnswer, TurnFunction
from antiphon.model import Budget, Usage
from antiphon.testing import answer, script, tool_call
from antiphon.tools import Context
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Price

pytestmark = pytest.mark.one_server

PRICES = {"any": Price(input=0.0, output=1000.0)}


class Answers:
    """An agent ``research`` that answers after ``gate`` was opened, and counts."""

    def __init__(self, *lines, **options):
        self.gate, self.entered = asyncio.Event(), 0

        @tool
        async def wait() -> str:
            """Wait."""
            self.entered += 1
            await self.gate.wait()
            return "open"

        self.model = script(*(lines or ("In November.",)), repeat=True)
        self.agent = Agent(self.model, "any", name="research", tools=[wait], **options)


def waits(request):
    return "In November." if request.messages[-1].role == "tool" else tool_call("wait")


def flow(run, **options):
    return Agent(run if isinstance(run, TurnFunction) else TurnFunction(run), "any", name="flow", **options)


def app_of(run, *agents, **options):
    return App(agents=[flow(run, **options), *agents], prices=PRICES)


@pytest.fixture
def place(place):
    return lambda run, *agents: place(flow(run), app=app_of(run, *agents))


def on_workers(run, redis_url, *agents):
    return places.on_workers(flow(run), redis_url, app_of(run, *agents))


async def test_agents_steps_sleeps_events_and_model_calls_come_in_any_order(place):
    ran = []
    research = Answers()

    async def ask():
        ran.append("model")
        return ModelAnswer(Message.assistant("Thinking."), Usage(1, 1))

    async def run(turn):
        context = turn.context
        first = await context.step("first", lambda: ran.append("first") or 1)
        said = await context.run_agent(research.agent, "When?")
        await turn.model_call(ask)
        await context.sleep(1)
        again = await context.run_agent(research.agent, "And where?")
        second = await context.step("second", lambda: ran.append("second") or 2)
        data = await context.wait_for_event("paid")
        return f"{first} {said} {again} {second} {data}"

    async with place(run, research.agent) as session_of:
        session = session_of("s")
        events = []
        async for event in session.stream("Go."):
            events.append(event)
            if event.type == "turn_sleeping" and "event paid" in str(event.waits):
                assert await session.send_event("paid", {"order": 7}) == 1
        children = await session.children()
    assert events[-1].response.text == "1 In November. In November. 2 {'order': 7}"
    assert ran == ["first", "model", "second"]
    assert len(children) == 2
    assert [one.messages[0].text for one in research.model.requests] == ["When?", "And where?"]
    recorded = [event.name for event in events if event.type == "step_recorded"]
    assert recorded == ["first", "agent research", "agent research#2", "second"]
    ends = [one for one in events if one.type == "child_event" and one.event["type"] == "turn_finished"]
    assert [(one.call_id, one.agent, one.depth) for one in ends] == [
        ("/agent-2", "research", 1), ("/agent-4", "research", 1),
    ]  # fmt: skip


async def test_several_agents_run_at_once(place):
    research = Answers(waits)

    async def run(turn):
        said = await asyncio.gather(
            *(turn.context.run_agent(research.agent, f"Question {n}") for n in range(3))
        )
        return " ".join(said)

    async with place(run, research.agent) as session_of:
        turn = await session_of("s").submit("Go.")

        async def all_wait():
            return research.entered == 3

        await wait_until_async(all_wait, 20, "all agents wait")
        await until(turn, "suspended")
        research.gate.set()
        assert (await turn.result(20)).text == " ".join(["In November."] * 3)


async def test_a_tool_runs_an_agent_between_its_steps(redis_url):
    ran = []
    research = Answers()

    @tool
    async def plan(where: str, context: Context) -> str:
        """Plan a journey."""
        await context.step("book", lambda: ran.append("book"))
        when = await context.run_agent(research.agent, f"When is {where} best?")
        await context.step("pay", lambda: ran.append("pay"))
        return f"Go {when}"

    writer = Agent(script(tool_call("plan", where="Kyoto"), "Planned."), "any", name="writer", tools=[plan])
    async with (
        AsyncClient(redis_url) as client,
        running_worker(redis_url, App(agents=[writer, research.agent])),
    ):
        [call] = (await client.session("s", agent="writer").run("Plan it.")).tool_calls
    assert (call.name, call.result, call.is_error) == ("plan", "Go In November.", False)
    assert ran == ["book", "pay"]


async def test_an_agent_that_fails_is_a_failed_step_wherever_the_function_is_repeated(place):
    research = Answers(tool_call("nothing"), max_steps=2)
    seen = []

    async def run(turn):
        try:
            await turn.context.run_agent(research.agent, "When?")
        except StepFailed as exc:
            seen.append(exc.message)
        await turn.context.sleep(1)
        return "It failed."

    async with place(run, research.agent) as session_of:
        assert (await session_of("s").run("Go.")).text == "It failed."
    assert len(seen) == 2
    assert len({*seen}) == 1
    assert seen[0].startswith("The agent research failed (step_limit): ")


async def test_an_agent_that_takes_too_long_is_stopped(place):
    research = Answers(waits)

    async def run(turn):
        with pytest.raises(StepFailed, match="did not answer in time"):
            await turn.context.run_agent(research.agent, "When?", timeout=0.3)
        return "Too late."

    async with place(run, research.agent) as session_of:
        session = session_of("s")
        assert (await session.run("Go.")).text == "Too late."
        [child] = await session.children()

        async def idle():
            return (await session_of(child).status()).state == "idle"

        await wait_until_async(idle, 20, "the child has ended")


async def test_cancelling_a_turn_cancels_the_agents_that_it_runs(place):
    research = Answers(waits)

    async def run(turn):
        return await turn.context.run_agent(research.agent, "When?")

    async with place(run, research.agent) as session_of:
        session = session_of("s")
        turn = await session.submit("Go.")
        await until(turn, "suspended")
        [child] = await session.children()
        await turn.cancel()
        await until(turn, "cancelled")

        async def idle():
            return (await session_of(child).status()).state == "idle"

        await wait_until_async(idle, 20, "the child has ended")
        assert await session_of(child).messages() == []


async def test_an_agent_that_the_app_does_not_have_is_not_started(redis_url):
    research = Answers()

    async def run(turn):
        return await turn.context.run_agent(research.agent, "When?")

    async with on_workers(run, redis_url) as session_of:
        session = session_of("s")
        with pytest.raises(AgentError, match="'research' is not one of the App"):
            await session.run("Go.")
        assert await session.children() == []


async def test_code_that_asks_for_another_agent_fails_the_turn(redis_url, monkeypatch):
    research, other, asks = Answers(), Agent(script("No.", repeat=True), "any", name="other"), []

    async def run(turn):
        agent = other if asks else research.agent
        asks.append(agent)
        said = await turn.context.run_agent(agent, "When?")
        await turn.context.sleep(1)
        return said

    async with on_workers(run, redis_url, research.agent, other) as session_of:
        with pytest.raises(AgentError, match=r"'agent research'.*'agent other'") as failed:
            await session_of("s").run("Go.")
    assert failed.value.code == "step_changed"


@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
async def test_a_function_that_is_broken_off_at_any_write_runs_each_agent_once(
    redis_url, monkeypatch, stored
):
    writes = BrokenOff(monkeypatch, stored=stored)
    for at in count():
        writes.at(at)
        research = Answers()

        async def run(turn, research=research):
            two = [turn.context.run_agent(research.agent, text) for text in ("One", "Two")]
            first, second = await asyncio.gather(*two)
            await turn.context.step("between", lambda: None)
            return f"{first} {second} {await turn.context.run_agent(research.agent, 'Three')}"

        async with on_workers(run, redis_url, research.agent) as session_of:
            session = session_of(f"s{at}")
            events = [event async for event in session.stream("Go.")]
            assert (await session.messages())[-1].text == " ".join(["In November."] * 3)
            assert len(await session.children()) == 3
        ends = [one for one in events if one.type == "child_event" and one.event["type"] == "turn_finished"]
        assert sorted(one.call_id for one in ends) == ["/agent-1", "/agent-2", "/agent-4"], at
        assert len(research.model.requests) == 3
        if writes.count < at:
            break
    assert at > 6


async def test_an_agent_draws_on_the_budgets_of_the_turn_that_runs_it(redis_url):
    spends = answer("Done.", usage=Usage(input_tokens=1, output_tokens=300))
    research = Answers(spends, max_tokens=400)

    async def run(turn):
        said = [await turn.context.run_agent(research.agent, "One")]
        try:
            said.append(await turn.context.run_agent(research.agent, "Two"))
        except StepFailed as exc:
            said.append(exc.message)
        return " ".join(said)

    app = app_of(run, research.agent, budgets=[Budget(tokens=250, per="turn")])
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        said = (await client.session("s", agent="flow").run("Go.")).text
    assert said.startswith("Done. The agent research failed (budget_reached): ")


def test_only_an_agent_and_a_text_can_be_run():
    agent = Agent("scripted", "any", name="research")

    async def run(*given):
        await Context().run_agent(*given)

    for given, why in (
        (("research", "When?"), "takes an Agent of the App, not 'research'"),
        ((agent, ""), "takes a text"),
        ((Agent("scripted", "any"), "When?"), "needs an agent with a name"),
        ((agent, "When?"), "needs a turn"),
    ):
        with pytest.raises(UsageError, match=why):
            asyncio.run(run(*given))
    with pytest.raises(UsageError, match="async def"):
        Context().run_agent(agent, "When?")
