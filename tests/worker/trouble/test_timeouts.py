"""Time limits of model calls, over HTTP with a server that stands still at each place."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import (
    ProviderFirstTokenTimedOut,
    ProviderSilent,
    ProviderStepTimedOut,
    ProviderTimedOut,
    SettingsError,
    UsageError,
)
from antiphon.input.request import AgentSpec
from antiphon.model import Retry, Timeouts
from antiphon_demo.modelserver.server import ModelServer
from antiphon_worker.app import App
from antiphon_worker.providers.anthropic.provider import Anthropic
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses
from antiphon_worker.resilience import CallTimeouts

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
