"""Models that answer in the same turn where that of the agent fails."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from support.ensemble import open_ensemble
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import (
    NotAllowed,
    ProviderFirstTokenTimedOut,
    ProviderOverloaded,
    ProviderRateLimited,
    ProviderRejected,
    ProviderSilent,
    ProviderStepTimedOut,
    ProviderTimedOut,
    ProviderUnauthorized,
    SettingsError,
    UnknownPrice,
    UnknownProvider,
    UsageError,
)
from antiphon.input.request import WITH_FALLBACK, AgentSpec, NewerRecord, refuse_newer
from antiphon.model import FallbackModel, Retry, Timeouts, Usage, encode
from antiphon.model.usage import Limits
from antiphon.testing import answer, script, tool_call
from antiphon_demo.modelserver.server import ModelServer
from antiphon_worker.app import App
from antiphon_worker.inline_agents import Allow
from antiphon_worker.loop.costs import Price
from antiphon_worker.providers.anthropic.provider import Anthropic
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.resilience import CallTimeouts

WHERE = ["here", "worker"]


async def played(
    where, redis_url, scripts, *, tools=(), retry=None, text="Hello", params=None, limits=None, prices=None
):
    """A turn of an agent whose models play these scripts, the first one its own: its outcome and its events."""
    names = [f"p{number}" for number in range(len(scripts))]
    models = {name: ScriptedProvider(lines, name=name) for name, lines in zip(names, scripts, strict=True)}
    if where == "here":
        first, *others = models.values()
        fallback = [Agent(model, f"m{n}", **(params or {})) for n, model in enumerate(others, 1)]
        agent = Agent(first, "m0", tools=tools, retry=retry, fallback=fallback, limits=limits, name="a")
        turn = agent.session("s").submit(text)
        outcome = await asyncio.to_thread(_outcome, turn)
        return outcome, list(turn.stream()), agent.session("s").messages
    fallback = [FallbackModel(name, f"m{name[1:]}", params or {}) for name in names[1:]]
    agent = Agent("p0", "m0", tools=tools, retry=retry, fallback=fallback, limits=limits, name="a")
    app = App([agent], providers=models, prices=prices)
    async with running_worker(redis_url, app, retry_delay=0.01), AsyncClient(redis_url) as client:
        turn = await client.submit("s", text, agent="a")
        try:
            outcome = await turn.result(20)
        except Exception as exc:  # noqa: BLE001 - the outcome of the turn
            outcome = exc
        events = [event async for event in turn.stream()]
        return outcome, events, (await client.snapshot("s")).messages


def _outcome(turn):
    try:
        return turn.result(20)
    except Exception as exc:  # noqa: BLE001 - the outcome of the turn
        return exc


def told(events):
    """What the events say of the models, and the text that a reader shows in the end."""
    changes = [(e.source, e.target, e.code, e.step) for e in events if e.type == "model_changed"]
    shown: dict[int, str] = {}
    for event in events:
        if event.type == "turn_retrying":
            shown[event.step] = ""
        elif event.type == "text_delta":
            shown[event.step] = shown.get(event.step, "") + event.text
    return changes, "|".join(shown.values())


@pytest.mark.parametrize("where", WHERE)
class TestWhoAnswers:
    async def test_the_next_model_answers_where_one_fails_for_good(self, where, redis_url):
        first = script(["The beginning of", ProviderRejected("Too long.", status=400)])
        outcome, events, history = await played(where, redis_url, [first, script("From the other.")])
        assert outcome.text == "From the other."
        assert told(events) == ([("p0/m0", "p1/m1", "provider_rejected", 1)], "From the other.")
        (retrying,) = [event for event in events if event.type == "turn_retrying"]
        assert (retrying.code, retrying.retry_at, retrying.service.status) == ("provider_rejected", 0, 400)
        assert [event.type for event in events].count("turn_started") == 1, "it is the same attempt"
        assert [(m.role, m.text, m.model) for m in history] == [
            ("user", "Hello", None), ("assistant", "From the other.", "m1"),
        ]  # fmt: skip

    async def test_the_last_error_fails_the_turn(self, where, redis_url):
        scripts = [
            script(ProviderRejected()),
            script(ProviderUnauthorized()),
            script(ProviderRejected("Third.")),
        ]
        outcome, events, _ = await played(where, redis_url, scripts)
        assert (type(outcome), outcome.message) == (ProviderRejected, "Third.")
        assert [change[:2] for change in told(events)[0]] == [("p0/m0", "p1/m1"), ("p1/m1", "p2/m2")]

    async def test_a_model_that_may_come_back_is_tried_again_first(self, where, redis_url):
        scripts = [script(ProviderOverloaded(), "From the first."), script()]
        retry = Retry(seconds=5, delay=0.01)
        outcome, events, _ = await played(where, redis_url, scripts, retry=retry)
        assert (outcome.text, told(events)[0]) == ("From the first.", [])

    async def test_one_that_is_limited_for_long_is_not_waited_for(self, where, redis_url):
        scripts = [script(ProviderRateLimited(retry_after=30.0)), script("From the other.")]
        outcome, events, _ = await played(where, redis_url, scripts, retry=Retry(seconds=20))
        assert outcome.text == "From the other."
        assert told(events)[0] == [("p0/m0", "p1/m1", "provider_rate_limited", 1)]

    async def test_a_fallback_goes_on_with_the_turn_also_in_another_attempt(self, where, redis_url):
        calls = []

        def look() -> str:
            calls.append(1)
            return "seen"

        first = script(ProviderRejected())
        other = script(tool_call("look"), ["Half", ProviderOverloaded()], "Done.")
        retry = Retry(times=1, delay=0.01)
        outcome, events, history = await played(where, redis_url, [first, other], tools=[look], retry=retry)
        assert (outcome.text, calls) == ("Done.", [1])
        assert told(events)[0] == [("p0/m0", "p1/m1", "provider_rejected", 1)]
        assert len(first.requests) == 1, "the second attempt begins with the model that the journal names"
        assert [m.model for m in history if m.role == "assistant"] == ["m1", "m1"]

    async def test_parameters_of_a_fallback_replace_those_of_the_agent(self, where, redis_url):
        other = script("Warm.")
        await played(where, redis_url, [script(ProviderRejected()), other], params={"temperature": 0.9})
        assert other.requests[0].params == {"temperature": 0.9}


def test_what_names_no_model_is_refused():
    for wrong, said in [
        ("openai/x", "a list"),
        (["openai"], "provider/model"),
        ([7], "provider/model"),
        (7, "a list"),
    ]:
        with pytest.raises(UsageError, match=said):
            Agent("scripted", "any", fallback=wrong)
    with pytest.raises(UsageError, match="fallbacks"):
        Agent("scripted", "any", fallback=["p/m"] * 17)
    with pytest.raises(UsageError, match="cannot be sent"):
        Agent("scripted", "any", fallback=[Agent(script(), "any")]).spec()
    assert Agent("p", "m", fallback=["groq/meta/llama"]).spec().fallback == [
        FallbackModel("groq", "meta/llama")
    ]


def test_an_older_worker_leaves_such_an_agent_to_others(monkeypatch):
    monkeypatch.setitem(__import__("antiphon.input.request", fromlist=["KNOWN"]).KNOWN, "agent", 1)
    refuse_newer("agent", encode(Agent("p", "m").spec()))
    with pytest.raises(NewerRecord):
        refuse_newer("agent", encode(Agent("p", "m", fallback=["q/m"]).spec()))


class TestTheDoor:
    def test_an_app_knows_the_providers_of_its_agents_fallbacks(self):
        with pytest.raises(UnknownProvider, match="nowhere"):
            App([Agent("scripted", "m", name="a", fallback=["nowhere/m"])])

    @pytest.mark.parametrize(
        ("model", "error"),
        [
            (FallbackModel("q", "m"), UnknownProvider),
            (FallbackModel("p", "dear"), NotAllowed),
            (FallbackModel("p", "m", {"extra_body": {"x": 1}}), NotAllowed),
        ],
    )
    def test_a_travelling_agent_names_only_what_the_app_allows(self, model, error):
        own = [Agent("scripted", "m", name="own")]
        app = App(
            own, providers={"p": ScriptedProvider(name="p")}, travelling=Allow(providers=["p"], models=["m"])
        )
        assert app.agent(AgentSpec("p", "m", fallback=[FallbackModel("p", "m")])).fallback
        with pytest.raises(error):
            app.agent(AgentSpec("p", "m", fallback=[model]))

    async def test_an_app_says_what_its_fallbacks_lack(self, monkeypatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        app = App([Agent("scripted", "m", name="a", fallback=["openai/gpt"])])
        assert "OPENAI_API_KEY" in (await app.lacks())["a"][0]
        with pytest.raises(SettingsError):
            App(timeouts=3)  # type: ignore[arg-type]


@pytest.mark.one_server
async def test_after_a_crash_the_model_that_the_journal_names_goes_on(redis_url, tmp_path, processes):
    """Nothing of an unfinished step is known elsewhere: it begins with the model of the step before it."""
    async with open_ensemble(redis_url, tmp_path, processes) as ensemble:
        ensemble.supervisor(processes=2)
        fallback = [FallbackModel("stage", "stage-1")]
        agent = AgentSpec("scripted", "m", tools=["note"], params={"script": []}, fallback=fallback)
        turn = await ensemble.submit("s", "tool:note die*2", agent=agent)
        assert (await turn.result(60)).model == "stage-1"
        events = await ensemble.events("s")
        changes = [event for event in events if event.type == "model_changed"]
        assert [(e.step, e.attempt) for e in changes] == [(1, 1)]
        assert [e.step for e in events if e.type == "turn_retrying"] == [1, 2]
        await ensemble.whole("s")


def priced(where, tmp_path, monkeypatch, **models):
    """The prices for ``played``: an agent in this process finds them in a file."""
    file = tmp_path / "prices.json"
    file.write_text(
        json.dumps({"models": {name: {"input": usd, "output": usd} for name, usd in models.items()}})
    )
    if where == "here":
        monkeypatch.setenv("ANTIPHON_PRICES", str(file))
    return {name: Price(input=usd, output=usd) for name, usd in models.items()}


@pytest.mark.parametrize("where", WHERE)
async def test_a_fallback_costs_its_own_price(where, redis_url, tmp_path, monkeypatch):
    prices = priced(where, tmp_path, monkeypatch, m0=1.0, m1=3.0)
    scripts = [script(ProviderRejected("No.")), script(answer("Yes", usage=Usage(1_000_000, 0)))]
    outcome, *_ = await played(where, redis_url, scripts, limits=Limits(cost=9.0), prices=prices)
    assert (outcome.text, outcome.usage.cost) == ("Yes", 3.0)


@pytest.mark.parametrize("where", WHERE)
async def test_a_fallback_without_a_price_is_not_called_where_the_cost_is_limited(
    where, redis_url, tmp_path, monkeypatch
):
    prices = priced(where, tmp_path, monkeypatch, m0=1.0)
    scripts = [script(ProviderRejected("No.")), script("Never")]
    outcome, *_ = await played(where, redis_url, scripts, limits=Limits(cost=9.0), prices=prices)
    assert isinstance(outcome, UnknownPrice)
    assert "m1 has no price" in str(outcome)


def test_an_agent_with_limits_and_a_fallback_is_for_workers_that_know_both():
    agent = Agent("scripted", "any", limits=Limits(tokens=3), fallback=["scripted/other"])
    assert agent.spec().version == WITH_FALLBACK


KINDS = {"openai": OpenAIResponses, "openai-chat": OpenAIChat, "anthropic": Anthropic}
SHORT = 0.2
PLACES = [
    (
        "fault:hang",
        Timeouts(first_token=SHORT),
        ProviderFirstTokenTimedOut,
        "did not begin its answer within 0.2 s",
    ),
    ("first:30", Timeouts(first_token=SHORT), ProviderFirstTokenTimedOut, "Timeouts(first_token=…)"),
    ("fault:hang=3", Timeouts(between_tokens=SHORT), ProviderSilent, "said nothing for 0.2 s"),
    ("pace:20 length:400", Timeouts(step=SHORT), ProviderStepTimedOut, "did not end its answer within 0.2 s"),
]


@asynccontextmanager
async def service(kind="openai-chat"):
    """A model server and a provider that asks it."""
    async with ModelServer() as server:
        url = server.base_url if kind == "anthropic" else server.openai_url
        provider = KINDS[kind](base_url=url, api_key="any")
        try:
            yield server, provider
        finally:
            await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("asked", "timeouts", "error", "said"), PLACES)
async def test_a_service_that_stands_still_ends_with_the_error_of_its_place(
    kind, asked, timeouts, error, said
):
    async with service(kind) as (server, provider):
        agent = Agent(provider, "any", timeouts=timeouts)
        with pytest.raises(error) as caught:
            await agent.session().run_async(f"Say it {asked}")
        assert said in caught.value.message
        assert isinstance(caught.value, ProviderTimedOut)
        assert caught.value.retryable is (error is not ProviderStepTimedOut)
        await wait_until_async(
            lambda: server.statistics.abandoned == server.statistics.streams,
            description="the connection to the service is closed",
        )


@pytest.mark.parametrize("kind", KINDS)
async def test_a_slow_answer_that_goes_on_is_not_ended(kind):
    async with service(kind) as (_, provider):
        agent = Agent(provider, "any", timeouts=Timeouts(first_token=20, between_tokens=0.4, step=60))
        response = await agent.session().run_async("Say it pace:10 length:8")
        assert response.stop_reason == "end"


async def test_a_turn_on_a_worker_tells_its_caller_which_time_was_over(redis_url):
    async with service() as (_, provider):
        own = Timeouts(between_tokens=SHORT)
        app = App(
            agents=[
                Agent("models", "any", name="patient", timeouts=own, retry=Retry(0)),
                Agent("models", "any", name="other", retry=Retry(0)),
            ],
            providers={"models": provider},
            timeouts=Timeouts(first_token=SHORT),
        )
        async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
            silent = await client.submit("a", "Say it fault:hang=3", agent="patient")
            late = await client.submit("b", "Say it fault:hang", agent="other")
            with pytest.raises(ProviderSilent, match=r"between_tokens=…"):
                await silent.result(20)
            with pytest.raises(ProviderFirstTokenTimedOut, match=r"within 0\.2 s"):
                await late.result(20)


class Outlet:
    heard = False
    full = False


class TestOneTimerForACall:
    async def test_an_outlet_that_is_full_does_not_let_the_service_be_late(self):
        outlet = Outlet()
        outlet.full = True
        async with CallTimeouts(Timeouts(first_token=0.02, between_tokens=0.02), "p", outlet):
            looked = asyncio.get_running_loop().time() + 0.06
            await wait_until_async(
                lambda: asyncio.get_running_loop().time() > looked, description="time is over"
            )
            outlet.full = False
            outlet.heard = True

    async def test_an_error_from_within_stays_what_it_is(self):
        with pytest.raises(TimeoutError, match="mine"):
            async with CallTimeouts(Timeouts(), "p", Outlet()):
                raise TimeoutError("mine")

    async def test_without_limits_nothing_is_looked_at(self):
        async with CallTimeouts(Timeouts(None, None, None), "p", Outlet()):
            await asyncio.sleep(0)

    @pytest.mark.parametrize("limits", [{"first_token": 0}, {"between_tokens": -1}, {"step": True}])
    def test_limits_that_make_no_sense_are_refused(self, limits):
        with pytest.raises(UsageError, match=f"Timeouts\\({next(iter(limits))}\\)"):
            Agent("scripted", "any", timeouts=Timeouts(**limits))
        with pytest.raises(SettingsError, match="Timeouts"):
            App(timeouts=Timeouts(**limits))

    def test_they_travel_with_their_agent(self):
        spec = Agent("scripted", "any", timeouts=Timeouts(step=9)).spec()
        assert (spec.timeouts, spec.version, AgentSpec("p", "m").timeouts) == (Timeouts(step=9), 4, None)
