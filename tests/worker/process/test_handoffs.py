"""A turn passes from agent to agent: within a turn, across turns, through crashes, and to other workers."""

from itertools import count

import pytest
from support.broken_off import BrokenOff
from support.ensemble import agent_spec
from support.eventually import wait_until_async
from support.here import running_worker
from support.places import on_workers, until

from antiphon import Agent, Message, tool
from antiphon.client import AsyncClient
from antiphon.errors import (
    BudgetReached,
    InvalidTool,
    LimitReached,
    NotAllowed,
    SettingsError,
    StepLimitReached,
    UnknownAgent,
    UsageError,
)
from antiphon.ext.turns import TurnFunction
from antiphon.handoffs import Handoff
from antiphon.hooks import Block, ModelStart, ToolStart, hooks_of
from antiphon.input.request import WITH_HANDOFFS, HandoffSpec
from antiphon.model import Budget, InCharge, Limits, Usage
from antiphon.model.revisions import Rollout
from antiphon.testing import answer, script, tool_call
from antiphon.tools import Context
from antiphon.window import Summary
from antiphon_demo.modelserver import Behaviour, ModelServer
from antiphon_worker import Allow
from antiphon_worker.app import App
from antiphon_worker.providers.anthropic.provider import Anthropic
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

pytestmark = pytest.mark.one_server

ADA = {"user": "Ada"}
HAND_OVER = tool_call("transfer_to_billing", reason="An invoice.")


@tool
def look_up(order: int) -> str:
    """Look an order up."""
    return f"Order {order} was shipped."


@tool(approval=True)
def refund() -> str:
    """Refund."""
    return "Refunded."


class Desk:
    """Two agents: ``support``, which hands over to ``billing``. ``said`` and ``heard`` are the models of both."""

    def __init__(self, *said, answers=("It is paid.",), back=(), **rule):
        self.said = script(*(said or [HAND_OVER]), repeat=True)
        self.heard = script(*answers, repeat=True)
        options = rule.pop("options", {})
        self.billing = Agent(self.heard, "any", name="billing", system="Bill {user}.", handoffs=back)
        self.support = Agent(
            self.said, "any", name="support", system="Help.", tools=[look_up, refund],
            handoffs=[Handoff(self.billing, **rule)], **options,
        )  # fmt: skip


def shown(model, call=0):
    """The texts of the messages that a model was sent in one of its calls."""
    return [one.text for one in model.requests[call].messages if one.text]


async def test_the_model_passes_its_turn_to_another_agent(place):
    desk = Desk()
    async with place(desk.support, variables=ADA) as session_of:
        session = session_of("s")
        events = [event async for event in session.stream("Is it paid?")]
        messages = await session.messages()
    [handoff] = [event for event in events if event.type == "handoff"]
    assert (handoff.source, handoff.target, handoff.reason) == ("support", "billing", "An invoice.")
    assert [(one.role, one.agent) for one in messages] == [
        ("user", None), ("assistant", "support"), ("tool", None), ("assistant", "billing"),
    ]  # fmt: skip
    assert messages[-1].text == "It is paid."
    [offered] = [one for one in desk.said.requests[0].tools if one.name == "transfer_to_billing"]
    assert "billing" in offered.description
    assert offered.parameters["properties"].keys() == {"reason"}
    assert desk.heard.requests[0].system == "Bill Ada."


@pytest.mark.parametrize(
    ("history", "seen"),
    [
        ("all", ["Hello", "Hi.", "Is it paid?"]),
        ("turn", ["Is it paid?"]),
        ("input", ["Is it paid?"]),
    ],
)
async def test_the_rule_decides_what_the_next_agent_receives(place, history, seen):
    desk = Desk("Hi.", HAND_OVER, history=history)
    async with place(desk.support, variables=ADA) as session_of:
        session = session_of("s")
        await session.run("Hello")
        await session.run("Is it paid?")
    assert shown(desk.heard) == seen
    calls = [call.name for one in desk.heard.requests[0].messages for call in one.tool_calls]
    assert calls == ([] if history == "input" else ["transfer_to_billing"])


async def test_the_prompt_of_the_next_agent_has_the_variables_that_tools_have_set(place):
    @tool
    def identify(context: Context) -> str:
        """Find out who asks."""
        context.variables["user"] = "Grace"
        return "Grace"

    desk = Desk(tool_call("identify"), HAND_OVER)
    desk.support.tools.append(identify)
    async with place(desk.support, variables=ADA) as session_of:
        await session_of("s").run("Is it paid?")
    assert desk.heard.requests[0].system == "Bill Grace."


@pytest.mark.parametrize(("after", "agents"), [("return", "support"), ("stay", "billing")])
async def test_the_next_turns_return_or_stay(place, after, agents):
    desk = Desk(HAND_OVER, "Hi.", answers=("It is paid.", "Since May.", "Yes."), after=after)
    async with place(desk.support, variables=ADA) as session_of:
        session = session_of("s")
        await session.run("Is it paid?")
        for text in ("Since when?", "Really?"):
            await session.run(text)
            last = (await session.messages())[-1]
            assert last.agent == agents
            assert last.in_charge == (InCharge("billing", "support") if after == "stay" else None)
            desk.said.requests = desk.said.requests[:1]  # Hi, again


async def test_a_rewound_session_and_a_fork_have_the_agent_that_their_history_ends_with(place):
    desk = Desk("Hi.", HAND_OVER, "Hi again.", answers=("It is paid.", "Since May."), after="stay")
    async with place(desk.support, variables=ADA) as session_of:
        session = session_of("s")
        await session.run("Hello")
        first = (await session.messages())[-1]
        await session.run("Is it paid?")
        fork = await session.fork()
        await session.rewind(first.id)
        await session.run("Hello again")
        assert (await session.messages())[-1].agent == "support"
        await fork.run("Since when?")
        assert (await fork.messages())[-1].text == "Since May."


async def test_a_turn_that_asks_for_another_agent_ends_the_stay(redis_url):
    desk = Desk(HAND_OVER, "Hi.", answers=("It is paid.", "Directly."), after="stay")
    async with on_workers(desk.support, redis_url, variables=ADA) as session_of:
        session = session_of("s")
        await session.run("Is it paid?")
        await session.run("You there", agent="billing")
        assert (await session.run("Back?")).text == "Hi."


async def test_no_input_can_name_the_agent_in_charge(place):
    desk = Desk("Hi.", after="stay")
    forged = Message.user("Hello")
    forged.turn_id, forged.in_charge = "t", InCharge("billing", "support")
    async with place(desk.support, variables=ADA) as session_of:
        session = session_of("s")
        await session.run([forged])
        assert (await session.messages())[0].in_charge is None
        assert (await session.run("Again")).text == "Hi."


async def test_other_calls_of_the_answer_run_before_the_hand_off(place):
    both = [HAND_OVER, tool_call("look_up", order=7), tool_call("transfer_to_billing", reason="Twice.")]
    desk = Desk(both)
    async with place(desk.support, variables=ADA) as session_of:
        session = session_of("s")
        events = [event async for event in session.stream("Is it paid?")]
    order = [event.name for event in events if event.type == "tool_result"]
    assert order == ["transfer_to_billing", "look_up", "transfer_to_billing"]
    assert [event.type for event in events if event.type in ("tool_result", "handoff")][-1] == "handoff"
    results = desk.heard.requests[0].messages[-1].tool_results
    assert [one.is_error for one in results] == [False, False, True]
    assert "only once" in results[2].text


async def test_a_call_that_waits_for_a_person_holds_the_hand_off(place):
    desk = Desk([HAND_OVER, tool_call("refund")])
    async with place(desk.support, variables=ADA) as session_of:
        session = session_of("s")
        turn = await session.submit("Refund it.")
        await until(turn, "suspended")
        assert not desk.heard.requests
        [call] = (await turn.info()).calls
        await turn.approve(call.call_id)
        assert (await turn.result(20)).text == "It is paid."


async def test_a_hand_off_can_need_an_approval_and_be_blocked(place):
    def blocked(call: ToolStart) -> Block | None:
        return Block("Closed.") if call.name.startswith("transfer_") else None

    desk = Desk(HAND_OVER, "Then not.", options={"approval": ["transfer_to_billing"]})
    async with place(desk.support, variables=ADA) as session_of:
        turn = await session_of("s").submit("Is it paid?")
        await until(turn, "suspended")
        await turn.reject((await turn.info()).calls[0].call_id)
        assert (await turn.result(20)).text == "Then not."
    desk = Desk(HAND_OVER, "Then not.", options={"hooks": [blocked]})
    async with place(desk.support, variables=ADA) as session_of:
        assert (await session_of("t").run("Is it paid?")).text == "Then not."
    assert not desk.heard.requests


async def test_agents_that_pass_a_turn_back_and_forth_are_bounded(place):
    desk = Desk(
        HAND_OVER, answers=(tool_call("transfer_to_support"),), back=["support"], options={"max_steps": 5}
    )
    async with place(desk.support, variables=ADA) as session_of:
        with pytest.raises(StepLimitReached):
            await session_of("s").run("Is it paid?")
    assert len(desk.said.requests) + len(desk.heard.requests) == 5


async def test_the_steps_of_the_next_agent_count_from_the_hand_off(place):
    desk = Desk(
        tool_call("look_up", order=1),
        tool_call("look_up", order=2),
        HAND_OVER,
        answers=(tool_call("nothing"),),
    )
    desk.billing.max_steps = 2
    async with place(desk.support, variables=ADA) as session_of:
        with pytest.raises(StepLimitReached):
            await session_of("s").run("Is it paid?")
    assert len(desk.heard.requests) == 2


async def test_what_all_agents_use_counts(place):
    desk = Desk()
    async with place(desk.support, variables=ADA) as session_of:
        session = session_of("s")
        response = await session.run("Is it paid?")
    assert response.usage.output_tokens > 2
    assert len(response.tool_calls) == 1
    desk = Desk()
    desk.billing.limits = Limits(tokens=1)
    async with place(desk.support, variables=ADA) as session_of:
        with pytest.raises(LimitReached, match="tokens"):
            await session_of("t").run("Is it paid?")
    assert not desk.heard.requests


async def test_each_agent_has_its_own_hooks_for_its_model_calls(place):
    seen = []
    desk = Desk()
    for agent in (desk.support, desk.billing):
        agent.hooks.extend(hooks_of([_noting(seen)]))
    async with place(desk.support, variables=ADA) as session_of:
        await session_of("s").run("Is it paid?")
    assert seen == ["support", "billing"]


def _noting(seen):
    def note(call: ModelStart) -> None:
        seen.append(call.agent)

    return note


async def test_parameters_and_instructions_of_a_turn_are_for_the_agent_that_it_asks_for(place):
    desk = Desk()
    desk.billing.params["temperature"] = 0.7
    async with place(desk.support, variables=ADA) as session_of:
        await session_of("s").run("Is it paid?", temperature=0.1)
    assert desk.said.requests[0].params["temperature"] == 0.1
    assert desk.heard.requests[0].params["temperature"] == 0.7


@pytest.mark.parametrize("kind", [OpenAIResponses, OpenAIChat, Anthropic])
async def test_model_services_hand_over(kind):
    async with ModelServer(Behaviour(record=20)) as models:
        url = models.base_url if kind is Anthropic else models.openai_url
        provider = kind(base_url=url, api_key="any")
        billing = Agent(provider, "m", name="billing", system="You bill.")
        support = Agent(provider, "m", name="support", system="You help.", handoffs=[billing])
        session = support.session_async()
        response = await session.run('call:transfer_to_billing {"reason": "An invoice."}')
        assert [one.agent for one in await session.messages()] == [None, "support", None, "billing"]
        assert [one.is_error for one in response.tool_calls] == [False]
        assert len(models.requests) == 2
        await provider.aclose()


# On workers


@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
async def test_a_turn_broken_off_at_any_write_ends_like_one_that_never_was(redis_url, monkeypatch, stored):
    writes = BrokenOff(monkeypatch, stored=stored)
    histories = []
    for at in count():
        writes.at(at)
        desk = Desk(
            answers=(tool_call("transfer_to_support", reason="Done."),), back=[Handoff("support", after="stay")],
        )  # fmt: skip
        desk.said.entries = [_by_results]
        async with on_workers(desk.support, redis_url, variables=ADA) as session_of:
            session = session_of(f"s{at}")
            events = [event async for event in session.stream("Is it paid?")]
            histories.append([_plain(one) for one in await session.messages()])
        handed = [(event.source, event.target) for event in events if event.type == "handoff"]
        assert handed == [("support", "billing"), ("billing", "support")], at
        assert histories[-1] == histories[0], at
        if writes.count < at:
            break
    assert len(histories) > 7  # the turn has seven writes


def _by_results(request):
    """Answer by the results that the model was shown, so that a repeated call is answered alike."""
    results = sum(len(one.tool_results) for one in request.messages)
    if results == 0:
        return tool_call("look_up", order=1)
    return [HAND_OVER, tool_call("look_up", order=2)] if results == 1 else "It is paid."


def _plain(message):
    return (
        message.role,
        message.agent,
        message.text,
        [one.name for one in message.tool_calls],
        message.in_charge,
    )


async def _advertised(client, number):
    return sum([len(one.workers) async for one in client.agents()]) == number


async def test_a_worker_without_the_next_agent_leaves_the_turn_to_one_that_has_it(redis_url):
    said, heard = script(HAND_OVER, repeat=True), script("It is paid.", repeat=True)
    first = App(agents=[Agent(said, "any", name="support", handoffs=["billing"])])
    second = App(agents=[Agent(heard, "any", name="billing")])
    async with AsyncClient(redis_url) as client:
        async with running_worker(redis_url, second), running_worker(redis_url, first):
            await wait_until_async(lambda: _advertised(client, 2), 20, "both are known")
            for number in range(8):  # either worker is the first one
                turn = await client.submit(f"s{number}", "Is it paid?", agent="support")
                assert (await turn.result(30)).text == "It is paid."
        async with running_worker(redis_url, first):
            turn = await client.submit("t", "Is it paid?", agent="support")
            with pytest.raises(UnknownAgent, match="billing"):
                await turn.result(30)


async def test_an_agent_that_stays_is_found_by_workers_without_the_one_that_handed_over(redis_url):
    rule = [Handoff("billing", after="stay")]
    first = App(agents=[Agent(script(HAND_OVER, repeat=True), "any", name="support", handoffs=rule)])
    second = App(agents=[Agent(script("It is paid.", repeat=True), "any", name="billing")])
    async with AsyncClient(redis_url) as client, running_worker(redis_url, second):
        async with running_worker(redis_url, first):
            await wait_until_async(lambda: _advertised(client, 2), 20, "both are known")
            await (await client.submit("s", "Is it paid?", agent="support")).result(30)
        assert (await (await client.submit("s", "Really?", agent="support")).result(30)).text == "It is paid."


@pytest.mark.parametrize("rollout", [Rollout(timeout=30), Rollout(timeout=0)], ids=["waits", "moves"])
async def test_a_turn_keeps_the_revision_of_the_agent_that_it_was_handed_to(redis_url, rollout):
    def app(*lines):
        lines, answer = script(*lines), lines[-1]
        billing = Agent(lines, "any", name="billing", system=answer, tools=[refund], rollout=rollout)
        return App(agents=[Agent(script(HAND_OVER), "any", name="support", handoffs=[billing])])

    old, new = app(tool_call("refund"), "old"), app("new")
    async with AsyncClient(redis_url) as client:
        async with running_worker(redis_url, old):
            turn = await client.submit("s", "Refund it.", agent="support")
            await until(turn, "suspended")
            call = (await turn.info()).calls[0]
        async with running_worker(redis_url, new):
            await turn.approve(call.call_id)
            if rollout.timeout:
                await until(turn, "retrying")
                assert (await turn.info()).code == "revision_unavailable"
                async with running_worker(redis_url, old):
                    assert (await turn.result(30)).text == "old"
            else:
                assert (await turn.result(30)).text == "new"
        events = [event async for event in turn.stream()]
    changed = [(event.agent, event.previous) for event in events if event.type == "agent_changed"]
    assert changed == ([] if rollout.timeout else [("billing", old.revisions["billing"].id)])


async def test_a_turn_that_names_no_agent_goes_to_the_one_that_was_listed(redis_url):
    desk, other = Desk(after="stay"), App(agents=[], tools=[look_up])
    app = App(agents=[desk.support])
    async with (
        AsyncClient(redis_url) as client,
        running_worker(redis_url, other),
        running_worker(redis_url, app),
    ):
        await wait_until_async(lambda: _advertised(client, 2), 20, "both are known")
        for number in range(4):  # either worker is the first one
            turn = await client.submit(f"s{number}", "Is it paid?")
            assert (await turn.result(30)).text == "It is paid."
        assert (await (await client.submit("s0", "Really?")).result(30)).messages[0].agent == "billing"
    both = App(agents=[desk.support, desk.billing])
    with pytest.raises(UnknownAgent, match="has several"):
        both.agent(None)


async def test_an_inline_agent_brings_the_agents_that_it_hands_over_to(redis_url):
    billing = Agent("heard", "any", name="billing", handoffs=["support"])
    support = Agent("said", "any", name="support", handoffs=[billing])
    said = script(HAND_OVER, "Back.")
    providers = {"said": said, "heard": script(tool_call("transfer_to_support"))}
    app = App(
        providers=providers,
        travelling=Allow(providers="any", models=["any"]),
    )
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        turn = await client.submit("s", "Is it paid?", agent=support)
        assert (await turn.result(30)).text == "Back."
        said.requests.clear()
        other = Agent("said", "any", name="x", handoffs=[Agent("heard", "other", name="billing")])
        with pytest.raises(NotAllowed, match="model 'other'"):
            await (await client.submit("t", "Is it paid?", agent=other)).result(30)


async def test_budgets_of_each_agent_pay_for_its_calls(redis_url):
    desk = Desk()
    desk.billing.budgets.append(Budget(tokens=1, per="day"))
    async with on_workers(desk.support, redis_url, variables=ADA) as session_of:
        await session_of("s").run("Is it paid?")
        with pytest.raises(BudgetReached):
            await session_of("t").run("Is it paid?")
    assert len(desk.said.requests) == 2
    assert len(desk.heard.requests) == 1


async def test_a_summary_before_the_hand_off_counts_with_the_usage_of_the_turn(place):
    desk = Desk(options={"window": Summary(turns=2, instructions="Keep orders.")})
    summaries, billed = [], []

    def said(request):
        if "Keep orders." in request.messages[-1].text:
            summaries.append(request)
            return answer("A summary.", usage=Usage(100, 10))
        return answer(HAND_OVER, usage=Usage(1, 1)) if request.messages[-1].text == "Is it paid?" else "Hi."

    desk.said.entries = [said]
    desk.heard.entries = [answer("It is paid.", usage=Usage(1, 1))]
    async with place(desk.support, variables=ADA) as session_of:
        session = session_of("s")
        while not summaries:
            await session.run("Hello")
        before = len(summaries)
        while len(summaries) == before:
            billed.append((await session.run("Is it paid?")).usage.tokens)
    assert billed[-1] == 2 + 2 + 110


def test_what_cannot_be_declared_is_refused():
    def function(turn):
        return "x"

    billing = Agent("scripted", "any", name="billing")
    for wrong in (
        "billing",
        7,
        [Agent("scripted", "any")],
        [7],
        [Handoff("")],
        [Handoff("a", history="none")],
    ):
        with pytest.raises(UsageError):
            Agent("scripted", "any", name="support", handoffs=wrong)
    with pytest.raises(UsageError, match="itself"):
        Agent("scripted", "any", name="support", handoffs=["support"])
    with pytest.raises(UsageError, match="transfer_to_billing"):
        Agent("scripted", "any", handoffs=[billing, "billing"])
    with pytest.raises(SettingsError, match="function of its own"):
        App(
            agents=[
                Agent("scripted", "any", name="s", handoffs=[Agent(TurnFunction(function), "any", name="f")])
            ]
        )
    other = Agent("scripted", "other", name="billing")
    with pytest.raises(SettingsError, match="Two agents"):
        App(agents=[Agent("scripted", "any", name="s", handoffs=[billing]), other])
    with pytest.raises(UsageError, match="Two agents"):
        Agent("scripted", "any", name="s", handoffs=[Agent("scripted", "any", name="billing", handoffs=[
            Agent("scripted", "any", name="c", handoffs=[other])])]).spec()  # fmt: skip


def test_the_revision_has_the_hand_offs_and_not_what_they_lead_to():
    def revision(**options):
        return Agent("scripted", "any", name="support", **options).revision

    plain = revision(handoffs=[Agent("scripted", "any", name="billing", system="A")])
    assert plain == revision(handoffs=["billing"])
    assert len({revision(), plain, revision(handoffs=[Handoff("billing", after="stay")])}) == 3


async def test_a_worker_killed_after_the_hand_off_continues_with_the_next_agent(processes, ensemble):
    agent = agent_spec(
        name="first", handoffs=[HandoffSpec("understudy", after="stay")], version=WITH_HANDOFFS
    )
    supervised = ensemble.supervisor(processes=2)
    supervised.ready(2)
    turn = await ensemble.submit("s", "tool:transfer_to_understudy die*2", agent=agent)
    await turn.result(30)
    messages = (await ensemble.client.snapshot("s")).messages
    assert [one.agent for one in messages] == [None, "first", None, "understudy"]
    assert messages[-1].in_charge == InCharge("understudy", "first")
    assert len(ensemble.stage.notes("dies")) == 1
    assert len(ensemble.stage.notes("asked")) == 3
    assert [event.type for event in await ensemble.events("s")].count("handoff") == 1
    assert await ensemble.field(turn, "crashes") == "1"
    assert supervised.process.terminate() == 0


async def test_no_tool_of_a_turn_takes_the_place_of_a_hand_off(redis_url):
    desk, allowed = Desk(), Allow(parameters=["caller_tools"])
    async with (
        AsyncClient(redis_url) as client,
        running_worker(redis_url, App(agents=[desk.support], travelling=allowed)),
    ):
        session = client.session("s", agent="support")
        with pytest.raises(InvalidTool, match="transfer_to_billing"):
            await session.run("Is it paid?", caller_tools=[{"name": "transfer_to_billing"}])
    assert desk.heard.requests == desk.said.requests == []
