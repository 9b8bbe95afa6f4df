"""OpenAI's interfaces under requests that no client of good will sends: none harms another caller, or the gateway."""

import asyncio

import openai
import pytest
from support.gateway import keys
from support.openai_clients import MODEL, open_client, stand

from antiphon_gateway.access.access import Access
from antiphon_gateway.openai import responses
from antiphon_gateway.settings import Limits

pytestmark = pytest.mark.one_server
HELLO = [{"role": "user", "content": "x"}]


async def test_what_is_anothers_does_not_exist_or_is_refused(redis_url, tmp_path):
    rights = ["read", "write", "admin"]
    known, secrets = keys(**{name: {"tenant": name, "rights": rights} for name in ("mine", "other")})
    async with (
        stand(redis_url, tmp_path),
        open_client(redis_url, secrets["mine"], access=Access(known)) as (api, client),
        openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=secrets["other"], max_retries=0) as stranger,
    ):
        made = await client.responses.create(model=MODEL, input="secret")
        session, item = made.conversation.id, made.output[0].id
        for refused in (
            stranger.responses.retrieve(made.id), stranger.responses.cancel(made.id),
            stranger.responses.delete(made.id), stranger.responses.input_items.list(made.id),
            stranger.responses.create(model=MODEL, input="x", previous_response_id=made.id),
            stranger.responses.compact(model=MODEL, previous_response_id=made.id),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                await refused
        for refused in (
            stranger.responses.create(model=MODEL, input="x", conversation=session),
            stranger.responses.create(
                model=MODEL, conversation=session,
                input=[{"type": "function_call_output", "call_id": "c", "output": "x"}],
            ),
            stranger.conversations.retrieve(session), stranger.conversations.delete(session),
            stranger.conversations.update(session, metadata={}), stranger.conversations.items.list(session),
            stranger.conversations.items.retrieve(item, conversation_id=session),
            stranger.conversations.items.create(session, items=HELLO),
        ):  # fmt: skip
            with pytest.raises(openai.PermissionDeniedError):
                await refused
        assert (await client.responses.retrieve(made.id)).output == made.output
        assert len([one async for one in client.conversations.items.list(session)]) == 2


async def test_ids_and_places_that_nothing_has_are_answered_at_once(redis_url, tmp_path, monkeypatch):
    async with stand(redis_url, tmp_path) as (ensemble, api, client):
        made = await client.responses.create(model=MODEL, input="x")
        for name in ("resp_", "x", f"{made.id}.1", f"{made.id}.99", f"{made.id}.x", f"{made.id}.", "resp_" + "a" * 2000,
                     f"resp_{made.id}", "resp_../x", "resp_\u0000", "ü"):  # fmt: skip
            with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
                await client.responses.retrieve(name)
        running = await client.responses.create(model=MODEL, input="go gate:g", background=True)
        await ensemble.waits("g")
        with monkeypatch.context() as patient:
            patient.setattr(responses, "READ_SECONDS", 3600)
            for name in (f"{running.id}.1", f"{running.id}.99"):
                with pytest.raises(openai.NotFoundError):
                    await client.responses.retrieve(name)
        ensemble.stage.open("g")
        for place in (10_000, 10**18):
            events = await client.responses.retrieve(made.id, stream=True, starting_after=place)
            assert [event async for event in events] == []
        for query in (
            "starting_after=-1",
            "starting_after=x",
            "limit=0",
            "stream=maybe",
            "stream=true&stream=true",
        ):
            await api.get(f"/v1/responses/{made.id}?{query}", 400)
        for query in ("limit=0", "limit=101", "order=up", "after=none"):
            await api.get(f"/v1/responses/{made.id}/input_items?{query}", 400)


async def test_bodies_that_are_too_large_too_deep_or_no_json_are_refused(redis_url):
    async with open_client(redis_url, limits=Limits(body_bytes=20_000)) as (api, _):
        deep = "[" * 5000 + "]" * 5000
        for route in (
            "/v1/responses", "/v1/chat/completions", "/v1/conversations", "/v1/responses/compact",
        ):  # fmt: skip
            for body, status in (
                (b'{"input": "%b"}' % (b"x" * 30_000), 413), (b'{"input": %b}' % deep.encode(), 400), (b"{", 400),
                (b"\xff", 400), (b"[]", 400), (b'{"model": "a/b", "input": "\\ud800", "messages": 1}', 400),
                (b'{"model": 7}', 400), (b'{"model": "a/b", "temperature": NaN}', 400), (b"", 400),
            ):  # fmt: skip
                found = await api.call(
                    "POST", route, status, content=body, headers={"content-type": "application/json"}
                )
                assert found["error"]["message"], (route, body[:30])
            await api.call("POST", route, 415, content=b"{}")
            await api.call("PUT", route, 405)
        nested = {"type": "object"}
        for _ in range(200):
            nested = {"type": "object", "properties": {"a": nested}}
        tool = {"type": "function", "name": "f", "parameters": nested}
        for wrong in ({"tools": [tool]}, {"tools": [{**tool, "parameters": {"type": "string"}}]},
                      {"tools": [{**tool, "name": "no name"}]}, {"tools": [{**tool, "parameters": {}}] * 2},
                      {"text": {"format": {"type": "json_schema", "schema": nested}}},
                      {"text": {"format": {"type": "json_schema", "schema": {"type": "array"}}}}):  # fmt: skip
            await api.post("/v1/responses", {"model": MODEL, "input": "x", **wrong}, 400)


async def test_two_that_follow_one_response_at_once_get_a_conversation_each(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, _, client):
        first = await client.responses.create(model=MODEL, input="one")

        def follow(text):
            return client.responses.create(model=MODEL, input=text, previous_response_id=first.id)

        in_place = asyncio.create_task(follow("next gate:g"))
        await ensemble.waits("g")
        made = await asyncio.gather(*(follow(f"next {number}") for number in range(3)))
        ensemble.stage.open("g")
        made.append(await in_place)
        assert all("I was shown 3 messages" in one.output_text for one in made)
        assert len({one.conversation.id for one in made}) == 4
        headers = {"Idempotency-Key": "same"}
        again = [
            await client.responses.create(
                model=MODEL, input="again", previous_response_id=first.id, extra_headers=headers
            )
            for _ in range(2)
        ]
        assert again[0].id == again[1].id


async def test_a_response_whose_session_was_deleted_can_neither_be_read_nor_followed(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, client):
        made = await client.responses.create(model=MODEL, input="one")
        await api.call("DELETE", f"/sessions/{made.conversation.id}", 204)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError, match="Unknown response"):
            await client.responses.create(model=MODEL, input="x", previous_response_id=made.id)
