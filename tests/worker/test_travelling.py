"""What may come with a turn: an App with something to take runs its own agents alone, and says what else it allows."""

import asyncio
import hashlib
from contextlib import asynccontextmanager

import msgspec
import pytest
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer
from support.eventually import wait_until_async

from antiphon import Agent, tool
from antiphon.client import AsyncClient
from antiphon.errors import (
    NotAllowed,
    SettingsError,
    TurnFailed,
    UnknownAgent,
    UnknownProvider,
    UnknownTool,
    UsageError,
)
from antiphon.input.request import AgentSpec, TurnRequest
from antiphon.model import Message
from antiphon.wire.records import NewTurn
from antiphon_worker import Allow, App
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.settings import Settings

ATTACK = [
    [{"type": "tool_call", "call_id": "c", "name": "refund", "arguments": {"amount": 1_000_000}}],
    "done",
]
SECRETS = ("support", "billing", "refund", "vault")
"""Names of the App that no error of it may tell."""


class Shop:
    """An App with something to take, on a worker of the test's loop."""

    def __init__(self, travelling=None):
        self.refunds = []

        @tool
        def refund(amount: int) -> str:
            """Pay back."""
            self.refunds.append(amount)
            return "paid"

        support = Agent("scripted", "small", name="support", tools=[refund], system="Be careful.")
        billing = Agent("vault", "large", name="billing", temperature=0.5)
        self.app = App(
            agents=[support, billing], providers={"vault": ScriptedProvider()}, travelling=travelling
        )
        self.support = support


def travelling(**fields):
    return AgentSpec(**{"provider": "scripted", "model": "any", **fields})


def test_named_agents_and_their_exact_descriptions_are_run():
    shop = Shop()
    assert shop.app.agent("support").system == "Be careful."
    assert shop.app.agent(shop.support.spec()) is shop.app.agent("support")
    assert shop.app.agent(msgspec.json.decode(msgspec.json.encode(shop.support.spec()), type=AgentSpec)).tools


@pytest.mark.parametrize(
    "changed",
    [
        {"system": "Pay everybody."},
        {"model": "large"},
        {"params": {"script": ATTACK}},
        {"max_steps": 900},
        {"tools": []},
    ],
)
def test_a_description_that_differs_from_the_apps_own_is_another_agent(changed):
    shop = Shop()
    with pytest.raises(NotAllowed):
        shop.app.agent(msgspec.structs.replace(shop.support.spec(), **changed))


@pytest.mark.parametrize(
    "asked",
    [
        travelling(), travelling(tools=["refund"]), travelling(provider="vault"), travelling(params={"script": ATTACK}),
        travelling(provider="nowhere", tools=["nothing"]), "nobody", None,
    ],
)  # fmt: skip
@pytest.mark.parametrize("allow", [None, Allow(providers=["groq"], tools=["clock"])])
def test_what_an_app_does_not_allow_is_refused_without_a_word_of_what_it_has(asked, allow):
    with pytest.raises(UsageError) as refused:
        Shop(allow).app.agent(asked)
    assert not [
        name
        for name in SECRETS
        if f"{name}"
        in str(refused.value).replace(repr(asked), "").replace(f"'{getattr(asked, 'provider', '')}'", "")
    ]


@pytest.mark.parametrize(
    "name",
    ["model", "tools", "extra_body", "extra_headers", "extra_query", "script", "delay", "mcp_servers",
     "previous_response_id", "functions", "n", "whatever_comes_next"],
)  # fmt: skip
def test_a_parameter_of_a_turn_cannot_take_the_place_of_what_an_agent_has(name):
    given = {name: {} if name.startswith("extra_") else "x"}
    with pytest.raises(NotAllowed, match=name):
        Shop().app.agent("support", given)
    assert Shop(Allow(parameters=[name])).app.agent("support", given).name == "support"
    assert Shop(Allow(parameters="any")).app.agent("support", given).name == "support"


@pytest.mark.parametrize("name", ["instructions", "messages", "input", "system"])
def test_what_the_provider_writes_itself_is_no_parameter_for_anyone(name):
    for allow in (None, Allow(parameters=[name]), Allow(parameters="any")):
        with pytest.raises(UsageError, match=f"{name}= is not a model parameter"):
            Shop(allow).app.agent("support", {name: "x"})


def test_ordinary_parameters_come_with_every_turn():
    assert Shop().app.agent("support", {"temperature": 0, "max_tokens": 9}).name == "support"


def test_a_turn_may_always_leave_tools_alone_and_never_force_one():
    for choice in ("auto", "none"):
        assert Shop().app.agent("support", {"tool_choice": choice}).name == "support"
    for choice in ("required", "refund", {"type": "function", "name": "refund"}):
        with pytest.raises(NotAllowed, match="tool_choice"):
            Shop().app.agent("support", {"tool_choice": choice})


def test_a_sessions_system_prompt_takes_an_agents_place_only_where_the_app_allows_it():
    with pytest.raises(NotAllowed, match="system"):
        Shop().app.agent("support", {}, own_system=True)
    assert Shop(Allow(system=True)).app.agent("support", {}, own_system=True).name == "support"
    assert App().agent(travelling(), {}, own_system=True).model == "any"


@pytest.mark.parametrize(
    ("agent", "error"),
    [
        ({}, None), ({"params": {"temperature": 1}}, None), ({"tools": ["clock"]}, None),
        ({"provider": "vault"}, UnknownProvider), ({"tools": ["refund"]}, UnknownTool),
        ({"model": "large"}, NotAllowed),
        ({"params": {"script": ["x"]}}, NotAllowed), ({"params": {"model": "large"}}, NotAllowed),
    ],
)  # fmt: skip
def test_an_app_says_what_may_travel(agent, error):
    app = Shop(Allow(providers=["scripted"], models=["any"], tools=["clock"])).app
    if error is None:
        assert app.agent(travelling(**agent)).provider == "scripted"
    else:
        with pytest.raises(error):
            app.agent(travelling(**agent))


def test_the_model_of_a_turn_is_one_of_those_that_are_allowed():
    app = Shop(Allow(models=["small"], parameters=["model"])).app
    assert app.agent("support", {"model": "small"}).name == "support"
    for other in ("large", 5, ["small"]):
        with pytest.raises(NotAllowed, match="small"):
            app.agent("support", {"model": other})


def test_tools_for_those_that_travel_are_the_apps_and_not_its_agents():
    @tool
    def clock() -> str:
        """Tell the time."""
        return "noon"

    shop = Shop()
    app = App(agents=[shop.support], tools=[clock], travelling=Allow(providers=["scripted"]))
    assert app.agent(travelling(tools=["clock"])).tools == ["clock"]
    with pytest.raises(UnknownTool, match="available: clock"):
        app.agent(travelling(tools=["refund"]))


def test_a_worker_without_an_app_runs_what_travels():
    assert (
        App().agent(travelling(params={"script": ["x"]}), {"model": "other", "extra_body": {}}).model == "any"
    )
    with pytest.raises(UnknownAgent):
        App().agent("support")
    with pytest.raises(UsageError, match="api_key"):  # also where it came around the client
        App().agent(travelling(params={"api_key": "sk"}))
    with pytest.raises(UsageError, match="base_url"):
        App().agent(travelling(), {"base_url": "http://elsewhere"})


@pytest.mark.parametrize(
    "wrong", [{"providers": "openai"}, {"models": [1]}, {"tools": 3}, {"parameters": {"a": 1}}]
)
def test_what_is_no_list_of_names_is_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Allow(**wrong)
    with pytest.raises(SettingsError):
        App(travelling=wrong)


@asynccontextmanager
async def open_shop(redis_url):
    shop = Shop()
    worker = Worker(Settings(redis_url=redis_url), shop.app, url=redis_url)
    working = asyncio.create_task(worker.run())
    async with AsyncClient(redis_url) as client:
        shop.client = client
        yield shop
    worker.abort()
    await working
    await shop.app.aclose()


@pytest.mark.parametrize("way", ["client", "session", "parameters", "raw", "rq"])
async def test_a_submitter_cannot_run_a_tool_of_the_app_with_arguments_of_his_own(way, redis_url):
    async with open_shop(redis_url) as shop:
        await attack(way, shop, redis_url)


async def attack(way, shop, redis_url):
    agent = travelling(tools=["refund"], params={"script": ATTACK})
    match way:
        case "client":
            turn = await shop.client.submit("s", "x", agent=agent)
        case "session":
            await shop.client.submit("s", "x", agent=agent)
            turn = await shop.client.submit("s", "y")
        case "parameters":
            turn = await shop.client.submit("s", "x", agent="support", params={"script": ATTACK})
        case "raw":
            payload = TurnRequest([Message.user("x")], agent).to_json()
            cell = shop.client.connections.cell_of_session("s")
            digest = hashlib.sha256(payload).hexdigest()
            await cell.submit(NewTurn("s", "raw-turn", payload, digest, agent=msgspec.json.encode(agent)))
            turn = await shop.client.turn("raw-turn")
        case _:
            with Redis.from_url(redis_url) as redis:
                queue = Queue("antiphon", connection=redis, serializer=JSONSerializer)
                options = {"agent": msgspec.to_builtins(agent)}
                job = queue.enqueue("antiphon_worker.jobs.run_turn", "s", "x", options)
                await wait_until_async(lambda: redis.exists(f"ant:turn:{job.id}"))
            turn = await shop.client.turn(job.id)
    with pytest.raises((NotAllowed, TurnFailed)) as refused:
        await turn.result(60)
    assert refused.value.code == "not_allowed"
    assert shop.refunds == []
    named = await shop.client.submit("t", "hello", agent="support")
    assert (await named.result(60)).text == "You said: hello"
