"""Turns with service="batch": their model steps go through the services' batch endpoints, at half the price (G27)."""

import pytest
from support.batched import KINDS, SOON, add, adding, service, working
from support.eventually import wait_until_async
from support.here import running_worker
from support.leaks import MARKER, dumped, holds
from support.services.batch_server import BatchServer, Refused, said_by

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.errors import TurnCancelled, UsageError
from antiphon.model import Retry
from antiphon_worker.app import App
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

pytestmark = pytest.mark.one_server


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr("antiphon_worker.batches.IDLE_SECONDS", 0.05)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_is_answered_in_batches_with_its_tools_between_them(redis_url, kind):
    async with working(redis_url, kind) as (client, server):
        turn = await client.submit("s", "The sum of 2 and 3?", agent="a", service="batch")
        events = [event async for event in turn.stream()]
        response = await turn.result(20)
    assert response.text == "It is 5."
    assert "".join(event.text for event in events if event.type == "text_delta") == "It is 5."
    assert [event.type for event in events if not event.type.endswith("_delta")] == [
        "turn_queued", "turn_started", "turn_sleeping", "turn_resumed", "turn_started",
        "step_finished", "tool_call", "tool_result",
        "turn_sleeping", "turn_resumed", "turn_started", "step_finished", "turn_finished",
    ]  # fmt: skip
    assert len(server.orders) == 2
    assert server.usual == []
    assert response.usage.cost == pytest.approx(2 * 0.5 * (1000 * 2 + 100 * 10) / 1_000_000)
    assert server.files == {}  # nothing of users stays at the service
    assert server.messages == {}


async def test_many_turns_go_in_one_batch_and_each_gets_its_own_answer(redis_url):
    def answer(body):
        return said_by("openai", f"to {body['input'][-1]['content'][0]['text']}")

    async with working(redis_url, "openai", answer, batch_seconds=60.0, batch_size=20) as (client, server):
        turns = [
            await client.submit(
                f"s{n}", f"question {n}", agent="a", service="batch", tenant=f"tenant-{n % 2}"
            )
            for n in range(20)
        ]
        assert [(await turn.result(20)).text for turn in turns] == [f"to question {n}" for n in range(20)]
    assert len(server.orders) == 1
    ids = [one["custom_id"] for one in server.requests[server.orders[0]]]
    assert len({*ids}) == 20
    assert all(len(one) == 32 for one in ids), "no tenant can guess the id of another's step"


async def test_what_other_turns_answers_look_like_in_a_batch_reaches_none_of_them(redis_url):
    """A service that mixes up answers, or a forged result, cannot reach a turn that is not in the batch."""
    async with working(redis_url, "openai", quick=False) as (client, server):
        victim = await client.submit("victim", "Hello", agent="a", service="batch", tenant="acme")
        (first,) = await wait_until_async(lambda: server.orders)
        attacker = await client.submit("attacker", "Hello", agent="a", service="batch", tenant="other")
        _, second = await wait_until_async(lambda: len(server.orders) == 2 and server.orders)
        known = server.requests[first][0]["custom_id"]
        server.requests[second].append({"custom_id": known, "body": {"input": "forged"}})
        server.finish(second)
        assert (await attacker.result(20)).text == "Hello."
        assert (await victim.status()) == "suspended"
        server.finish(first)
        assert (await victim.result(20)).text == "Hello."


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_with_an_error_goes_to_the_usual_endpoint_at_the_usual_price(redis_url, kind):
    async with working(redis_url, kind, quick=False) as (client, server):
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        server.failing["*"] = "too long"
        server.finish()
        response = await turn.result(20)
    assert response.text == "Hello."
    assert len(server.usual) == 1
    assert response.usage.cost == pytest.approx((1000 * 2 + 100 * 10) / 1_000_000)


@pytest.mark.parametrize(
    ("status", "error"), [("failed", "invalid_json_line"), ("expired", ""), ("cancelled", "")]
)
async def test_the_turns_of_a_batch_without_answers_go_to_the_usual_endpoint(redis_url, status, error):
    async with working(redis_url, "openai", quick=False) as (client, server):
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        server.failing["*"] = "no time"
        server.finish(status=status, error=error)
        assert (await turn.result(20)).text == "Hello."
    assert len(server.usual) == 1


async def test_a_batch_that_is_too_much_for_now_is_sent_again(redis_url, monkeypatch):
    monkeypatch.setattr("antiphon_worker.batches.FULL_SECONDS", 0.05)
    async with working(redis_url, "openai", quick=False) as (client, server):
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        server.batches[server.orders[0]]["status"] = "validating"
        server.finish(status="failed", error="token_limit_exceeded")
        await wait_until_async(lambda: len(server.orders) == 2)
        server.finish(server.orders[1])
        assert (await turn.result(20)).text == "Hello."
    assert server.usual == []


async def test_at_the_deadline_the_usual_endpoint_answers_and_a_late_answer_is_dropped(redis_url):
    async with working(redis_url, "openai", quick=False, batch_deadline=0.2) as (client, server):
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        response = await turn.result(20)
        assert response.text == "Hello."
        assert len(server.usual) == 1
        await wait_until_async(lambda: [one["status"] for one in server.batches.values()] == ["cancelled"])
        await wait_until_async(lambda: server.files == {})
        assert len((await client.snapshot("s")).messages) == 2


async def test_a_turn_that_is_cancelled_in_a_batch_ends_at_once_and_its_batch_is_cancelled(redis_url):
    async with working(redis_url, "openai", quick=False) as (client, server):
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        await turn.cancel()
        with pytest.raises(TurnCancelled):
            await turn.result(20)
        await wait_until_async(lambda: [one["status"] for one in server.batches.values()] == ["cancelled"])
        assert (await (await client.submit("s", "Hello", agent="a")).result(20)).text == "Hello."


async def test_the_session_may_go_on_while_a_turn_waits_for_its_batch(redis_url):
    async with working(redis_url, "openai", quick=False) as (client, server):
        waits = await client.submit("s", "Hello", agent="a", service="batch", while_suspended="continue")
        await wait_until_async(lambda: server.orders)
        assert (await (await client.submit("s", "Hello", agent="a")).result(20)).text == "Hello."
        server.finish()
        assert (await waits.result(20)).text == "Hello."


async def test_a_turn_whose_model_has_no_batches_fails_and_says_so(redis_url):
    async with running_worker(redis_url, App()), AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hello", agent=Agent("scripted", "m"), service="batch")
        with pytest.raises(UsageError, match="needs a model service with batches"):
            await turn.result(20)


async def test_a_turn_without_workers_cannot_be_batched():
    session = Agent("scripted", "m").session("s")
    with pytest.raises(UsageError, match="needs workers"):
        await session.run_async("Hello", service="batch")


async def test_the_request_of_a_batched_step_is_kept_as_it_is_sent(redis_url):
    async with BatchServer(adding("openai")) as server:
        app = App(
            [Agent("openai", "m", name="a")],
            providers={"openai": service("openai", server.url)},
            keep_requests=True,
        )
        async with running_worker(redis_url, app, **SOON), AsyncClient(redis_url) as client:
            turn = await client.submit("s", "Hello", agent="a", service="batch")
            assert (await turn.result(20)).text == "Hello."
            (kept,) = await turn.requests()
    (sent,) = server.requests[server.orders[0]]
    assert kept.body == sent["body"]


async def test_nothing_of_a_batched_turn_is_in_the_clear(redis_url, monkeypatch, redis):
    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))
    redis.flushall()

    def answer(body):
        return said_by("openai", f"{MARKER} was said")

    async with working(redis_url, "openai", answer, quick=False) as (client, server):
        turn = await client.submit("s", f"{MARKER} was asked", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        assert MARKER in str(server.requests)
        assert [key for key, data in dumped(redis).items() if holds(data)] == []
        server.finish()
        assert (await turn.result(20)).text == f"{MARKER} was said"
        assert [key for key, data in dumped(redis).items() if holds(data)] == []


async def test_deleting_a_session_deletes_what_it_has_asked_for(redis_url, redis):
    async with working(redis_url, "openai", quick=False, batch_seconds=600.0) as (client, server):
        await client.submit("s", f"{MARKER} was asked", agent="a", service="batch")
        await wait_until_async(lambda: any(b"batch_step" in key for key in redis.scan_iter()))
        await client.session("s").delete()
        for group in redis.zrange("ant:batch_groups", 0, -1):
            redis.zadd("ant:batch_groups", {group: 0})
        await wait_until_async(lambda: not list(redis.scan_iter(match="ant:batch*")))
        assert [key for key, data in dumped(redis).items() if holds(data)] == []
        assert server.orders == []


async def test_a_text_that_comes_while_the_batch_runs_is_no_part_of_its_question(redis_url):
    async with working(redis_url, "openai", quick=False) as (client, server):
        first = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        second = await client.submit("s", "And this?", agent="a", if_busy="steer")
        server.finish()
        assert (await first.result(20)).text == "Hello."
        assert (await second.result(20)).turn_id == second.id, "it has an answer of its own"
        said = [message.text for message in (await client.snapshot("s")).messages]
    assert said == ["Hello", "Hello.", "And this?", "Hello."]
    assert "And this?" not in str(server.requests)


async def test_a_step_that_a_fallback_is_asked_for_in_a_batch_is_answered_by_it(redis_url):
    """The next attempt goes on with the fallback: each model is asked once in a batch."""

    def out_of_order(body):
        raise Refused(503, "out of order")

    async with BatchServer(out_of_order) as first, BatchServer(adding("anthropic")) as second:
        app = App(
            [Agent("openai", "m", name="a", tools=[add], fallback=["anthropic/m"], retry=Retry(times=0))],
            providers={
                "openai": OpenAIResponses(base_url=f"{first.url}/v1", api_key="k", max_retries=0),
                "anthropic": service("anthropic", second.url),
            },
        )
        async with running_worker(redis_url, app, **SOON), AsyncClient(redis_url) as client:
            turn = await client.submit("s", "The sum of 2 and 3?", agent="a", service="batch")
            assert (await turn.result(20)).text == "It is 5."
    assert (len(first.orders), len(first.usual)) == (1, 1)
    assert (len(second.orders), second.usual) == (2, [])
