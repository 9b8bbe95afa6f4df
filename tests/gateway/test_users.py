"""Turns have the user that OpenAI's clients and chats in browsers name: to export and erase them."""

import asyncio
import json

import pytest
from redis import Redis
from support.leaks import MARKER, dumped, holds
from support.openai_clients import answered, calling, open_client, socket

from antiphon import Agent, AsyncClient
from antiphon.cli.main import main
from antiphon.input.limits import LIMITS

pytestmark = pytest.mark.one_server
MODEL = "scripted/any"
NAME = "ann"
NAMES = {
    "user": {"user": NAME},
    "safety_identifier": {"safety_identifier": NAME},
    "both": {"user": NAME, "safety_identifier": "other"},
    "an empty one": {"user": "", "safety_identifier": NAME},
}
AGENT = Agent(provider="scripted", model="any", name="clerk")


def keys_with_the_marker(redis_url):
    with Redis.from_url(redis_url) as redis:
        redis.config_set("rdbcompression", "no")
        return [key for key, data in dumped(redis).items() if holds(data + (redis.dump(key) or b""))]


async def command(capsys, redis_url, *argv):
    """Run a command, and return its output."""
    code = await asyncio.to_thread(main, [*argv, "--redis-url", redis_url])
    shown = capsys.readouterr()
    assert code == 0, shown
    return shown.out


async def ask_for_a_response(client, fields):
    first = await client.responses.create(model=MODEL, input=MARKER, **fields)
    await client.responses.create(model=MODEL, input=MARKER, previous_response_id=first.id, **fields)
    await client.responses.create(
        model=MODEL, input=MARKER, previous_response_id=first.id, **fields
    )  # a copy
    async with await client.responses.create(model=MODEL, input=MARKER, stream=True, **fields) as events:
        async for _ in events:
            pass
    await client.responses.compact(model=MODEL, previous_response_id=first.id, input=MARKER)


async def ask_for_a_completion(client, fields):
    asked = [{"role": "user", "content": MARKER}]
    await client.chat.completions.create(model=MODEL, messages=asked, **fields)
    async with await client.chat.completions.create(
        model=MODEL, messages=asked, stream=True, **fields
    ) as chunks:
        async for _ in chunks:
            pass


@pytest.mark.parametrize("fields", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("ask", [ask_for_a_response, ask_for_a_completion], ids=lambda ask: ask.__name__)
async def test_the_user_of_openai_s_clients_is_exported_and_erased(redis_url, capsys, ask, fields):
    seen = []

    def answers(request):
        seen.append(request.params)
        return "Hi" if request.params.get("user") == "bob" else MARKER

    async with calling(redis_url, answers) as (_, client):
        await ask(client, fields)
        await client.responses.create(model=MODEL, input="Hello", user="bob")
        assert [{name: given.get(name) for name in fields} for given in seen[:2]] == [fields] * 2, "passed on"
        exported = await command(capsys, redis_url, "export", "--user", NAME)
        kinds = [json.loads(line)["type"] for line in exported.splitlines()]
        turns = {"ask_for_a_response": 5, "ask_for_a_completion": 2}[ask.__name__]
        assert kinds.count("turn") >= turns
        assert MARKER in exported
        assert keys_with_the_marker(redis_url)
        await command(capsys, redis_url, "forget", "--user", NAME)
        assert keys_with_the_marker(redis_url) == []
        assert await command(capsys, redis_url, "export", "--user", "bob"), "another user's is kept"


async def test_the_user_of_a_websocket_is_erased(redis_url, capsys):
    async with calling(redis_url, lambda _: MARKER) as (api, _), socket(api) as peer:
        assert (await answered(peer, model=MODEL, input=MARKER, user=NAME))[-1][
            "type"
        ] == "response.completed"
        await command(capsys, redis_url, "forget", "--user", NAME)
        assert keys_with_the_marker(redis_url) == []


@pytest.mark.parametrize("field", ["user", "safety_identifier"])
@pytest.mark.parametrize("path", ["responses", "chat/completions"])
async def test_a_name_that_no_user_can_have_is_refused_with_its_field(redis_url, field, path):
    asked = {"input": "x"} if path == "responses" else {"messages": [{"role": "user", "content": "x"}]}
    wrong = ["a\nb", "\u2028"] + (["x" * (LIMITS.id_bytes + 1)] if field == "user" else ["ü" * 128])
    async with open_client(redis_url) as (api, _):
        for name in wrong:
            answer = await api.post(f"/v1/{path}", {"model": MODEL, **asked, field: name}, 400)
            assert answer["error"]["param"] == field
            assert answer["error"]["message"].startswith(f"{field}: A user must ")


async def test_a_tenant_s_user_is_not_another_tenant_s(redis_url, capsys):
    async with calling(redis_url, lambda _: MARKER) as (_, client):
        await client.responses.create(model=MODEL, input=MARKER, user=NAME)
        await command(capsys, redis_url, "forget", "--user", NAME, "--tenant", "acme")
        assert keys_with_the_marker(redis_url), "this user has no tenant"


async def test_the_user_of_a_chat_in_a_browser_is_erased(redis_url, capsys):
    said = {"id": "m", "role": "user", "parts": [{"type": "text", "text": MARKER}]}
    async with calling(redis_url, lambda _: MARKER, [AGENT]) as (api, _):
        for more in ({"messages": [said]}, {"trigger": "regenerate-message"}):
            await api.http.post("/chat", json={"id": "s", "agent": "clerk", "user": NAME, **more})
        run = {
            "threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [],
            "messages": [{"id": "m", "role": "user", "content": MARKER}], "forwardedProps": {"user": NAME},
        }  # fmt: skip
        await api.http.post("/ag-ui/clerk", json=run)
        async with AsyncClient(redis_url) as client:
            named = [(await turn.info()).user for session in "st" async for turn in client.turns(session)]
            assert named == [NAME] * 3
            await command(capsys, redis_url, "forget", "--user", NAME)
            assert keys_with_the_marker(redis_url) == []
            assert (await client.snapshot("s")).messages == []


@pytest.mark.parametrize("props", [None, {}, {"user": ""}, {"user": {"id": 1}}, "text"], ids=str)
async def test_other_properties_of_ag_ui_name_no_user(redis_url, props):
    async with calling(redis_url, lambda _: "Hi", [AGENT]) as (api, _):
        run = {
            "threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [],
            "messages": [{"id": "m", "role": "user", "content": "Hello"}], "forwardedProps": props,
        }  # fmt: skip
        await api.http.post("/ag-ui/clerk", json=run)
        async with AsyncClient(redis_url) as client:
            assert [(await turn.info()).user async for turn in client.turns("t")] == [None]
