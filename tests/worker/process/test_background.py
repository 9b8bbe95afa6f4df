"""Answers in the background survive the worker that reads them: nothing is paid or shown twice (G23)."""

import os
import signal
from contextlib import asynccontextmanager

import openai
import pytest
from support.eventually import patience, wait_until_async
from support.models import ModelProcess
from support.processes import worker_name

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import ProviderError
from antiphon.model import Limits, Retry
from antiphon_demo.modelserver import Behaviour, ModelServer
from antiphon_worker.providers.http.connection import Connection
from antiphon_worker.providers.openai_responses import background
from antiphon_worker.providers.openai_responses.background import BackgroundDecoder
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

pytestmark = pytest.mark.one_server

PIECES = 10
EVENTS = range(3, PIECES + 4)  # from the first piece on: the turn is queued, started, answered, and has ended
AGENT = Agent(provider="openai", model="m", background=True, retry=Retry(seconds=60), limits=Limits(steps=4))


def texts(events):
    return "".join(event.text for event in events if event.type == "text_delta")


async def read_and_kill(worker, turn, number):
    """Read a turn, and kill the process that runs it once so many events have come. Returns all events."""
    seen, holder, killed = [], "", False
    async for event in turn.stream():
        seen.append(event)
        if event.type == "turn_started":
            holder = event.worker
        if len(seen) == number and not killed:
            (pid,) = [pid for pid in worker.children() if worker_name(pid) == holder]
            os.kill(pid, signal.SIGKILL)
            killed = True
    assert killed
    return seen


@pytest.mark.main_path
async def test_a_worker_killed_in_the_middle_of_an_answer_repeats_none_of_it(processes, redis_url):
    models = ModelProcess(processes, "--pace", "20", "--length", str(PIECES))
    worker = processes.worker(redis_url, "--processes", "2", env=models.environment)
    worker.wait_for_output("takes turns")
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hello", agent=AGENT)
        events = await read_and_kill(worker, turn, 6)
        response = await turn.result(20)
    assert texts(events) == response.text
    assert [event.type for event in events if not event.type.endswith("_delta")] == [
        "turn_queued", "turn_started", "turn_started", "step_finished", "turn_finished",
    ]  # fmt: skip
    assert models.statistics()["background"] == 1


async def test_kill_9_at_every_event_of_an_answer(processes, redis_url):
    models = ModelProcess(processes, "--pace", "20", "--length", str(PIECES))
    worker = processes.worker(redis_url, "--processes", "2", env=models.environment)
    worker.wait_for_output("takes turns")
    async with AsyncClient(redis_url) as client:
        for begun, number in enumerate(EVENTS, 1):
            turn = await client.submit(f"s{number}", "Hello", agent=AGENT)
            events = await read_and_kill(worker, turn, number)
            response = await turn.result(20)
            assert texts(events) == response.text, number
            assert "turn_retrying" not in {event.type for event in events}, number
            assert models.statistics()["background"] == begun, number
            assert len((await client.snapshot(f"s{number}")).messages) == 2


async def test_a_worker_killed_before_the_service_named_the_answer_asks_again(processes, redis_url):
    models = ModelProcess(processes, "--first", "600", "--pace", "20", "--length", str(PIECES))
    worker = processes.worker(redis_url, "--processes", "2", env=models.environment)
    worker.wait_for_output("takes turns")
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "first:0.01", agent=AGENT)
        events = await read_and_kill(worker, turn, 2)
        assert (await turn.result(20)).text.startswith(texts(events)[:5])


@asynccontextmanager
async def serving(**behaviour):
    """A model server, and what an agent needs to use it in the background."""
    async with ModelServer(Behaviour(pace=50, length=PIECES, record=20, **behaviour)) as server:
        provider = OpenAIResponses(base_url=server.openai_url, api_key="any")
        yield server, {"provider": provider, "model": "m", "background": True}
        await provider.aclose()


async def test_an_answer_whose_connection_is_cut_is_read_on_in_the_same_attempt():
    async with serving() as (models, options):
        session = Agent(**options).session_async()
        events = [event async for event in session.stream("Hello fault:cut=5*1")]
        assert texts(events) == (await session.messages())[-1].text
        assert "turn_retrying" not in {event.type for event in events}
        assert models.statistics.background == 1


async def test_an_answer_is_read_on_with_the_headers_of_its_request(monkeypatch):
    opened, seen = Connection.open, []

    async def watched(self, provider, call):
        seen.append((call.method, call.headers))
        return await opened(self, provider, call)

    monkeypatch.setattr(Connection, "open", watched)
    headers = {"x-client-request-id": "7"}
    async with serving() as (_, options):
        session = Agent(**options, extra_headers=headers).session_async()
        await session.run("Hello fault:cut=5*1")
    assert seen == [("POST", headers), ("GET", headers)]


async def test_an_answer_that_the_service_has_lost_is_asked_for_again():
    async with serving(background_kept=False) as (models, options):
        session = Agent(**options, retry=Retry(seconds=20, delay=0.01)).session_async()
        turn = await session.submit("Hello fault:cut=5*1")
        events = [event async for event in turn.stream()]
        shown = events[max(n for n, event in enumerate(events) if event.type == "turn_retrying") :]
        assert texts(shown) == (await turn.result(20)).text
        assert models.statistics.background == 2


async def test_an_answer_that_is_streamed_no_more_is_read_whole():
    async with serving(background_streams=False) as (models, options):
        session = Agent(**options, retry=Retry(seconds=20, delay=0.01)).session_async()
        turn = await session.submit("Hello fault:cut=5*1")
        events = [event async for event in turn.stream()]
        response = await turn.result(20)
        assert texts(events) == response.text
        assert [event.usage for event in events if event.type == "step_finished"] == [response.usage]
        assert models.statistics.background == 1


@pytest.mark.parametrize("told", [True, False])
async def test_an_answer_that_failed_is_counted_as_the_service_charges_it(told, monkeypatch):
    """In the event of its end, or, where that is silent, in the response itself."""
    if not told:
        monkeypatch.setattr(BackgroundDecoder, "charge", only_afterwards(BackgroundDecoder.charge))
    async with serving() as (models, options):
        options |= {"model": "gpt-5", "retry": Retry(seconds=20, delay=0.01)}
        session = Agent(**options).session_async()
        turn = await session.submit("Hello fault:failed=5*1")
        events = [event async for event in turn.stream()]
        response = await turn.result(20)
        (step,) = [event for event in events if event.type == "step_finished"]
        assert models.statistics.background == 2
        assert response.usage == step.usage + step.usage
        assert await session.usage() == response.usage
        assert response.usage.cost == 2 * step.usage.cost > 0


def only_afterwards(charge):
    """A service whose last event has no usage."""
    silent = []

    def later(decoder, response):
        if silent or response["status"] != "failed":
            charge(decoder, response)
        else:
            silent.append(response)

    return later


async def test_a_turn_that_fails_has_used_what_its_lost_answers_cost():
    async with serving() as (models, options):
        session = Agent(**options, retry=Retry(times=2, delay=0.01)).session_async()
        turn = await session.submit("Hello fault:failed=5")
        with pytest.raises(ProviderError):
            await turn.result(20)
        usage = (await turn.info()).usage
        assert models.statistics.background == 3
        assert usage.output_tokens % 3 == usage.input_tokens % 3 == usage.estimated_tokens == 0 < usage.tokens
        assert await session.usage() == usage


async def test_a_cancelled_turn_stops_its_answer_and_has_used_what_the_service_counted(monkeypatch):
    monkeypatch.setattr(background, "SHORT_SECONDS", patience(background.SHORT_SECONDS))
    async with serving() as (models, options):
        session = Agent(**options).session_async()
        turn = await session.submit("Hello length:1000")
        async for event in turn.stream():
            if event.type == "text_delta":
                await turn.cancel()
        await wait_until_async(lambda: models.statistics.cancelled, 20, "the answer is cancelled")
        assert models.statistics.cancelled == 1
        usage = (await turn.info()).usage
        assert (usage.output_tokens, usage.estimated_tokens) == (1000, 0)


async def test_an_answer_with_tools_is_begun_anew_for_each_step():
    def weather(city: str) -> str:
        """Return the weather."""
        return "Rain."

    async with serving() as (models, options):
        session = Agent(**options, tools=[weather]).session_async()
        response = await session.run('call:weather {"city": "Paris"}')
        assert response.tool_calls[0].result == "Rain."
        assert models.statistics.background == 2
        assert all(request.body["background"] and request.body["store"] for request in models.requests)


async def test_the_endpoint_of_the_model_server_has_the_forms_of_the_sdk():
    async with (
        serving() as (models, _),
        openai.AsyncOpenAI(base_url=models.openai_url, api_key="any") as client,
    ):
        stream = await client.responses.create(model="m", input="Hello", background=True, stream=True)
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == [*range(len(events))]
        assert all(type(event).model_validate(event.model_dump()) == event for event in events)
        created = events[0].response
        assert (created.background, created.status) == (True, "in_progress")
        assert events[-1].type == "response.completed"
        rest = await client.responses.retrieve(created.id, stream=True, starting_after=4)
        assert [event async for event in rest] == events[5:]
        assert (await client.responses.retrieve(created.id)).status == "completed"
        assert (await client.responses.cancel(created.id)).status == "cancelled"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_00")
