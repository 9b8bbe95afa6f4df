"""Responses over a WebSocket, and streams that outlive a gateway and a worker."""

import asyncio
import json
from contextlib import suppress

import openai
import pytest
from support.eventually import patience
from support.gateway import open_gateway
from support.openai_clients import MODEL, answered, contract_at, open_client, socket, stand, told
from support.stage import FIRST_WORDS
from websockets.exceptions import ConnectionClosed, InvalidStatus

from antiphon_gateway.access.access import Access
from antiphon_gateway.access.caller import Key, Keys, hash_of, new_key

pytestmark = pytest.mark.one_server


@pytest.fixture
def contract(request):
    """Checks a response or an event against the Open Responses specification."""
    return contract_at(request.config.rootpath)


async def closing(peer):
    """The messages up to the end of the connection, however it ends."""
    with suppress(ConnectionClosed):
        async for message in peer:
            yield message


async def test_the_official_client_makes_responses_one_after_the_other(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, _, client), client.responses.connect() as peer:
        await peer.response.create(model=MODEL, input="one")
        first = await last_of(peer)
        await peer.response.create(model=MODEL, input="two", previous_response_id=first.id)
        second = await last_of(peer)
        assert "I was shown 3 messages" in second.output_text
        assert (await client.responses.retrieve(second.id)).output == second.output


async def last_of(peer):
    async for event in peer:
        if event.type == "response.completed":
            return event.response
    raise AssertionError("it does not end by itself")


async def test_the_events_are_those_of_the_stream_and_errors_leave_the_connection_open(
    redis_url, tmp_path, contract
):
    async with stand(redis_url, tmp_path) as (_, api, client), socket(api) as peer:
        found = await answered(peer, input="one", store=False)
        for event in found:
            contract(event)
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        name = found[-1]["response"]["id"]
        after = await answered(peer, input="two", previous_response_id=name)
        assert "I was shown 3 messages" in after[-1]["response"]["output"][0]["content"][0]["text"]
        again = [
            event async for event in await client.responses.retrieve(after[-1]["response"]["id"], stream=True)
        ]
        assert [event.to_dict(mode="json") for event in again] == after
        for wrong, status, code in (
            ({"input": "x", "previous_response_id": "resp_none"}, 404, "previous_response_not_found"),
            ({"input": "x", "stream": True}, 400, "unsupported_stream"),
            ({"input": "x", "background": False}, 400, "unsupported_background"),
            ({"input": "x", "stream_options": {}}, 400, "unsupported_stream_options"),
            ({"input": "x", "colour": "red"}, 400, "invalid_body"),
            ({"type": "response.cancel"}, 400, "invalid_type"), ({"input": 7}, 400, "invalid_body"),
        ):  # fmt: skip
            (error,) = await answered(peer, **wrong)
            contract(error, "WebSocketErrorEvent")
            assert (error["status"], error["error"]["code"]) == (status, code), error
        for wrong in ("no JSON", "[]", b"\xff"):
            await peer.send(wrong)
            assert (await told(peer))[0]["error"]["code"] == "invalid_body"
        await peer.send(json.dumps({"type": "response.create", "model": MODEL, "input": "a"}))
        assert (await answered(peer, input="b"))[-1]["type"] == "response.completed"
        assert (await told(peer))[-1]["type"] == "response.completed", "what is sent at once waits"
        assert (await answered(peer, input="fail:rejected"))[-1]["type"] == "response.failed"


@pytest.mark.parametrize("reconnects", [False, True])
async def test_a_response_that_is_not_stored_is_continued_on_its_connection_until_that_fails(
    redis_url, tmp_path, reconnects
):
    missing = [{"type": "function_call_output", "call_id": "call_none", "output": "x"}]
    async with stand(redis_url, tmp_path) as (_, api, _):
        async with socket(api) as peer:
            first = (await answered(peer, input="one", store=False))[-1]["response"]["id"]
            stored = (await answered(peer, input="one"))[-1]["response"]["id"]
            again = await answered(peer, input="two", store=False, previous_response_id=first)
            assert again[-1]["type"] == "response.completed"
            if not reconnects:
                for name in (first, stored):
                    wrong = await answered(peer, input=missing, store=False, previous_response_id=name)
                    assert wrong[-1]["type"] == "error"
                (error,) = await answered(peer, input="three", store=False, previous_response_id=first)
        if reconnects:
            async with socket(api) as peer:
                (error,) = await answered(peer, input="three", store=False, previous_response_id=first)
        assert error["error"]["code"] == "previous_response_not_found"
        async with socket(api) as peer:
            more = await answered(peer, input="three", store=False, previous_response_id=stored)
            assert more[-1]["type"] == "response.completed", (
                "what is stored outlives a connection and a failure"
            )


async def test_who_may_not_make_responses_is_not_let_in(redis_url, tmp_path, caplog):
    keys = {name: new_key() for name in ("a", "b", "reads")}
    access = Access(
        Keys(
            {
                name: Key(
                    hash=hash_of(key),
                    tenant=name,
                    rights=["read"] if name == "reads" else ["read", "write"],
                    streams=1,
                )
                for name, key in keys.items()
            }
        )
    )
    async with stand(redis_url, tmp_path), open_client(redis_url, keys["a"], access=access) as (api, client):

        def bearer(name):
            return {"additional_headers": {"Authorization": f"Bearer {keys[name]}"}}

        for options, path, status in (
            ({}, "/v1/responses", 401), (bearer("reads"), "/v1/responses", 403), (bearer("a"), "/v1/models", 405),
            (bearer("a"), "/sessions", 404), (bearer("a"), "/v1/responses?token=x", 401),
        ):  # fmt: skip
            with pytest.raises(InvalidStatus) as caught:
                async with socket(api, path, **options):
                    pass
            assert caught.value.response.status_code == status
        mine = await client.responses.create(model=MODEL, input="mine")
        async with socket(api, **bearer("a")) as peer:
            with pytest.raises(InvalidStatus) as caught:
                async with socket(api, **bearer("a")):
                    pass
            assert caught.value.response.status_code == 429
            assert (await answered(peer, input="x", previous_response_id=mine.id))[-1][
                "type"
            ] == "response.completed"
        async with socket(api, **bearer("b")) as peer:
            (error,) = await answered(peer, input="x", previous_response_id=mine.id)
            assert error["error"]["code"] == "previous_response_not_found"
            (error,) = await answered(peer, input="x", conversation=mine.conversation.id)
            assert error["status"] == 403
    assert [one for one in caplog.records if one.name.startswith("uvicorn")] == [], "a refusal is no fault"


async def test_a_connection_ends_when_its_gateway_drains_and_the_response_goes_on(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, _, client):
        async with open_gateway(redis_url) as (other, app), socket(other) as peer:
            await peer.send(json.dumps({"type": "response.create", "model": MODEL, "input": "go gate:g"}))
            begun = json.loads(await peer.recv())
            await ensemble.waits("g")
            app.drain()
            messages = [json.loads(message) async for message in closing(peer)]
            assert (peer.close_code, messages[-1]["error"]["code"]) == (1012, "draining")
        ensemble.stage.open("g")
        events = await client.responses.retrieve(
            begun["response"]["id"], stream=True, starting_after=begun["sequence_number"]
        )
        rest = [event async for event in events]
        assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
        assert rest[-1].response.output_text.startswith(FIRST_WORDS)


async def test_a_caller_who_leaves_in_mid_answer_harms_nobody(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, client):
        async with socket(api) as peer:
            await peer.send(json.dumps({"type": "response.create", "model": MODEL, "input": "go gate:g"}))
            name = json.loads(await peer.recv())["response"]["id"]
            await ensemble.waits("g")
        ensemble.stage.open("g")
        async with asyncio.timeout(patience(20)):
            events = await client.responses.retrieve(name, stream=True)
            assert [event async for event in events][-1].type == "response.completed"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(name + ".1")
