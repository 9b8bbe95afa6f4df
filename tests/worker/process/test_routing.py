"""The router of an App chooses agent, model or queue of a turn before it begins: once, and for every attempt alike."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon import Agent
from antiphon.cli.explain import story_of
from antiphon.client import AsyncClient
from antiphon.errors import LimitReached, NotAllowed, SettingsError, StoreUnavailable, UnknownAgent
from antiphon.events import TurnRetrying
from antiphon.model import Limits
from antiphon.model.revisions import Rollout
from antiphon.routing import Route, Routing
from antiphon.testing import script, tool_call
from antiphon_worker.app import App
from antiphon_worker.process import routing
from antiphon_worker.process.lease import Stop, StopSignal

pytestmark = pytest.mark.one_server


class House:
    """Two agents and a router, with what it was asked. ``chosen`` are its choices, the last one repeatedly."""

    def __init__(self, *chosen, **options):
        self.chosen, self.asked = list(chosen), []
        self.front = Agent(script("Front.", repeat=True), "any", name="front")
        self.back = Agent(script("Back.", repeat=True), "any", name="back", **options)

    def router(self, turn):
        self.asked.append(turn)
        return self.chosen.pop(0) if len(self.chosen) > 1 else self.chosen[0]

    def app(self, **options):
        return App(agents=[self.front, self.back], router=self.router, **options)


@asynccontextmanager
async def served(app, redis_url, **settings):
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app, **settings):
        yield client


def changes(events):
    return [
        (one.agent, one.model, one.queue, one.reason)
        for one in events
        if one.type == "agent_changed" and not one.revision
    ]


async def test_the_router_chooses_the_agent_and_every_reader_sees_why(redis_url):
    house = House(Route("back", reason="It is about money."))
    async with served(house.app(), redis_url) as client:
        session = client.session("s", agent="front", variables={"plan": "free"}, tenant="acme")
        turn = await session.submit("Hello", user="ada", metadata={"page": 7})
        events = [event async for event in turn.stream()]
        info, messages = await turn.info(), await session.messages()
    [asked] = house.asked
    assert (asked.session_id, asked.turn_id, asked.queue) == ("s", turn.id, "antiphon")
    assert (asked.agent, asked.tenant, asked.user, asked.text) == ("front", "acme", "ada", "Hello")
    assert (asked.metadata, asked.variables, asked.previous) == ({"page": 7}, {"plan": "free"}, None)
    assert changes(events) == [("back", "", "", "It is about money.")]
    kinds = [event.type for event in events]
    assert kinds.index("agent_changed") < kinds.index("text_delta")
    assert info.route == Route("back", reason="It is about money.")
    assert (info.agent, messages[-1].agent, messages[-1].text) == ("front", "back", "Back.")
    told = [one.text for one in story_of(events, 0).sentences]
    assert "A router chose its agent back: It is about money." in told


@pytest.mark.parametrize("synchronous", [True, False])
async def test_the_router_chooses_the_model_of_the_agent_that_is_asked_for(redis_url, synchronous):
    house = House(Route(model="small", reason="Short."))

    async def choose(turn):
        return house.router(turn)

    app = App(agents=[house.front, house.back], router=house.router if synchronous else choose)
    async with served(app, redis_url) as client:
        await client.session("s", agent="front").run("Hello", temperature=0.5)
    [request] = house.front.provider.requests
    assert request.model == "small"
    assert request.params["temperature"] == 0.5


async def test_a_turn_moves_to_the_queue_of_its_route_before_it_begins(redis_url, redis):
    house = House(Route(queue="slow", reason="A long one."))
    async with served(house.app(), redis_url) as client:
        turn = await client.session("s", agent="front", tenant="acme").submit("Hello")

        async def moved():
            return await asyncio.to_thread(redis.lrange, "rq:queue:slow", 0, -1) == [turn.id.encode()]

        await wait_until_async(moved, 20, "the turn is in the other queue")
        assert redis.hget(f"rq:job:{turn.id}", "origin") == b"slow"
        assert not redis.lrange("rq:queue:antiphon", 0, -1)
        assert [redis.zcard(f"rq:wip:{queue}") for queue in ("antiphon", "slow")] == [0, 0]
        assert not house.front.provider.requests
        other = await client.session("other", agent="front", tenant="acme").submit("Hi", queue="slow")
        async with running_worker(redis_url, house.app(), queues=["slow"]):
            assert (await turn.result()).text == (await other.result()).text == "Front."
        info = await turn.info()
        events = [event async for event in turn.stream()]
    assert (info.attempt, info.route.queue) == (1, "slow")
    assert [one.turn_id for one in house.asked] == [turn.id, other.id]  # it was asked once for each
    [again] = [event for event in events if isinstance(event, TurnRetrying)]
    assert again.code == "routed"


@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
async def test_an_attempt_after_the_choice_does_not_ask_again(redis_url, monkeypatch, stored):
    """Broken off right before the choice is written, and right after it."""
    write, broken = routing.write_route, []

    async def breaking(*args, **named):
        first = not broken
        broken.append(args)
        if stored or not first:
            await write(*args, **named)
        if first:
            raise StopSignal(Stop.DRAINED)
        return True

    monkeypatch.setattr(routing, "write_route", breaking)
    house = House("back", "front") if stored else House("front", "back")
    async with served(house.app(), redis_url) as client:
        session = client.session("s", agent="front")
        turn = await session.submit("Hello")
        events = [event async for event in turn.stream()]
        assert (await session.messages())[-1].agent == "back"
    assert len(house.asked) == len(broken) == (1 if stored else 2)
    assert changes(events) == [("back", "", "", "")]


async def test_a_lost_answer_to_the_write_repeats_it_once(redis_url, monkeypatch):
    house, answers = House("back"), []

    async def losing(*args, **named):
        answers.append(await write(*args, **named))
        if len(answers) == 1:
            raise StoreUnavailable("The answer was lost.")
        return answers[-1]

    write = routing.write_route
    monkeypatch.setattr(routing, "write_route", losing)
    async with served(house.app(), redis_url) as client:
        turn = await client.session("s", agent="front").submit("Hello")
        events = [event async for event in turn.stream()]
    assert answers == [True, True]
    assert len(changes(events)) == 1


async def test_a_requeued_turn_and_the_next_one_are_routed_anew_and_see_the_last_choice(redis_url):
    house = House("nobody", "back", None)
    async with served(house.app(), redis_url) as client:
        session = client.session("s", agent="front")
        turn = await session.submit("Hello")
        with pytest.raises(UnknownAgent):
            await turn.result()
        await client.requeue(turn.id)
        assert (await turn.result()).text == "Back."
        assert (await session.run("Again")).text == "Front."
    assert [one.previous for one in house.asked] == [None, Route("nobody"), Route("back")]


class Odd:
    """What can neither be compared nor shown, as some arrays."""

    def __eq__(self, other):
        raise ValueError("secret")

    __hash__ = None

    def __repr__(self):
        raise ValueError("secret")


def raising(turn):
    raise RuntimeError("secret")


async def hanging(turn):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("router", "why"),
    [
        (raising, "it raised RuntimeError"),
        (hanging, "it raised TimeoutError"),
        (lambda turn: 7, "A router returns a Route, the name of an agent or None, not int"),
        (lambda turn: Route(agent=""), "agent= must be a non-empty string, not ''"),
        (lambda turn: Route(model=7), "model= must be a non-empty string, not 7"),
        (lambda turn: Route(queue="no queue"), "A queue name must be"),
        (lambda turn: Route("back", reason=7), "reason= must be text, not 7"),
        (lambda turn: Odd(), "A router returns a Route, the name of an agent or None, not Odd"),
        (lambda turn: Route(model=Odd()), "what it returned raised ValueError"),
        (lambda turn: Route(agent=b"x" * 1_000_000), "agent= must be a non-empty string, not b'xxx"),
        (lambda turn: "x" * 1_000_000, "agent= has 1,000,000 characters: at most 2,048 are allowed"),
        (lambda turn: Route(queue="q" * 1_000_000), "A queue name must be"),
        (lambda turn: Route("back", model="\ud800"), "The route contains half a character"),
    ],
)
async def test_a_turn_whose_router_fails_runs_as_submitted(redis_url, monkeypatch, router, why):
    if router is hanging:  # the others have all the time of a busy machine
        monkeypatch.setattr(routing, "ROUTER_SECONDS", 0.05)
    house = House()
    app = App(agents=[house.front, house.back], router=router)
    async with served(app, redis_url) as client:
        session = client.session("s", agent="front")
        turn = await session.submit("Hello")
        events = [event async for event in turn.stream()]
        info = await turn.info()
        assert (await session.messages())[-1].agent == "front"
    [(agent, model, queue, reason)] = changes(events)
    assert (agent, model, queue) == ("front", "", "")
    assert reason.startswith(f"The router failed ({why}")
    assert len(reason) < 1000
    assert "secret" not in reason
    assert info.route.reason == reason
    assert story_of(events, 0).sentences[2].text == reason


@pytest.mark.parametrize("stored", [b"{", b'{"agent":7}', b"\xff", b"[" * 100_000])
async def test_a_damaged_choice_of_an_earlier_turn_is_none(redis_url, redis, stored):
    house = House("back")
    async with served(house.app(), redis_url) as client:
        session = client.session("s", agent="front")
        await session.run("Hello")
        redis.hset("ant:session:s", "route", stored)
        assert (await session.run("Again")).text == "Back."
    assert [one.previous for one in house.asked] == [None, None]


async def test_a_routers_choice_does_not_widen_what_a_turn_may_do(redis_url):
    """Its own model needs no permission. What the turn brings needs one still, under the agent that was chosen."""
    house = House(Route("back", model="big"))
    house.back = Agent(
        script(tool_call("none"), repeat=True), "any", name="back",
        limits=Limits(tokens=1),
    )  # fmt: skip
    async with served(house.app(), redis_url) as client:
        with pytest.raises(LimitReached):
            await client.session("s", agent="front").run("Hello")
        with pytest.raises(NotAllowed, match="'model'"):
            await client.session("t", agent="front").run("Hello", model="huge")
        with pytest.raises(NotAllowed, match="system prompt"):
            await client.session("u", agent="front").run("Hello", instructions="Obey.")
    assert [one.model for one in house.back.provider.requests] == ["big"]


async def test_sub_agents_and_agents_that_come_with_a_turn_are_not_routed(redis_url):
    house = House("back")
    parent = Agent(
        script(tool_call("front", input="Hi"), "Done."), "any", name="parent", tools=[house.front.as_tool()]
    )
    app = App(agents=[parent, house.back], router=lambda turn: house.asked.append(turn.agent))
    async with served(app, redis_url) as client:
        assert (await client.session("s", agent="parent").run("Go")).text == "Done."
    assert house.asked == ["parent"]


async def test_a_pinned_session_keeps_the_revision_of_the_agent_that_was_chosen(redis_url, redis):
    house = House("back", rollout=Rollout(sessions="pinned"))
    app = house.app()
    async with served(app, redis_url) as client:
        await client.session("s", agent="front").run("Hello")
    assert redis.hget("ant:session:s", "pins") == b'{"back":"%s"}' % app.revisions["back"].id.encode()


async def test_a_schedules_turn_is_routed(redis_url):
    house = House(Route("back", reason="Scheduled."))
    async with served(house.app(), redis_url) as client:
        await client.schedules("s").set("news", "Hello", on="news", agent="front")
        await client.send_event("news", "It is out.")

        async def answered():
            return "Back." in [one.text for one in await client.session("s").messages()]

        await wait_until_async(answered, 20, "the scheduled turn has ended")
    assert len(house.asked) == 1


async def test_turns_without_an_agent_begin_with_the_router_that_is_one(redis_url):
    house = House()
    triage = Agent(
        script(tool_call("transfer_to_back", reason="Money."), repeat=True), "any", name="triage",
        handoffs=[house.back],
    )  # fmt: skip
    app = App(agents=[house.front, house.back], router=triage)
    async with served(app, redis_url) as client:
        session = client.session("s")
        events = [event async for event in session.stream("Hello")]
        assert (await session.run("Hello", agent="front")).text == "Front."
    [handoff] = [event for event in events if event.type == "handoff"]
    assert (handoff.source, handoff.target, handoff.reason) == ("triage", "back", "Money.")


def test_a_router_is_a_function_or_an_agent():
    with pytest.raises(SettingsError, match="router= must be a function or an Agent, not 7"):
        App(router=7)
    assert Routing("s", "t", "q", []).text == ""
