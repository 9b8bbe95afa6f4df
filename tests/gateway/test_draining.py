"""A gateway that drains while a request waits: the request is refused, and its repetition returns the result."""

import asyncio

import openai
import pytest
from support.ensemble import open_ensemble
from support.eventually import wait_until_async
from support.gateway import open_gateway
from support.openai_clients import MODEL

pytestmark = pytest.mark.one_server
HELLO = [{"role": "user", "content": "Hello"}]
ASKS = {
    "/v1/responses": {"model": MODEL, "input": "Hello"},
    "/v1/chat/completions": {"model": MODEL, "messages": HELLO},
    "/v1/responses/compact": {"model": MODEL, "input": "Hello"},
}


async def waits(app):
    """Return when a request waits for a turn which no worker runs."""
    await wait_until_async(lambda: app._services.stopping._event._waiters, 20, "a request waits")


async def drained(app, asks):
    """What a request gets that waits when its gateway drains."""
    asked = asyncio.create_task(asks)
    await waits(app)
    app.drain()
    return await asked


@pytest.mark.parametrize("route", ASKS)
async def test_a_request_that_waits_is_refused_and_its_repetition_gets_the_result(redis_url, tmp_path, route):
    body, key = ASKS[route], {"Idempotency-Key": "k"}
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        for headers in (key, {}):
            async with open_gateway(redis_url) as (api, app):
                refused = await drained(app, api.http.post(route, json=body, headers=headers))
            error = refused.json()["error"]
            told = refused.status_code, error["code"], refused.headers["retry-after"]
            assert told == (503, "draining", "1")
            assert ("x-should-retry" in refused.headers) is (not headers), "it would run a second turn"
        async with open_gateway(redis_url) as (api, _), ensemble.worker():
            await api.post(route, body, 200, headers=key)
            assert len((await api.get("/sessions"))["sessions"]) == 2, (
                "one turn for each of the first requests"
            )
            turn = error["message"].partition("/turns/")[2].partition("/")[0]
            assert (await api.result(turn))["status"] == "finished", "and its answer is where the error says"


async def test_the_official_client_gets_the_answer_from_another_gateway(redis_url, ensemble):
    async with (
        open_gateway(redis_url) as (api, app),
        open_gateway(redis_url) as (other, _),
        openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=3) as client,
    ):

        async def elsewhere(response):
            if response.status_code == 503:
                client.base_url = f"{other.url}/v1"

        client._client.event_hooks["response"].append(elsewhere)
        asks = client.responses.create(model=MODEL, input="Hello", extra_headers={"Idempotency-Key": "k"})
        asked = asyncio.create_task(asks)
        await waits(app)
        app.drain()
        async with ensemble.worker():
            made = await asked
        assert (made.status, "I was shown 1 messages" in made.output_text) == ("completed", True)


async def test_requests_of_our_own_interface_that_wait_are_refused_too(redis_url, ensemble):
    for method, path in (("GET", "/turns/{turn}/result?wait=30"), ("POST", "/sessions/s/close")):
        async with open_gateway(redis_url) as (api, app):
            turn = await api.submit("s", "Hello", key="one")
            asks = api.http.request(method, path.format(turn=turn))
            refused = await drained(app, asks)
        told = refused.status_code, refused.json()["code"], refused.headers["retry-after"]
        assert told == (503, "draining", "1"), path
    async with open_gateway(redis_url) as (api, app):
        app.drain()
        assert (await api.get(f"/turns/{turn}/result", 202))["status"] == "queued", "it does not wait"
    async with ensemble.worker(), open_gateway(redis_url) as (api, _):
        await api.result(turn)
