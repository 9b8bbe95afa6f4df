"""Tool results that come with the whole conversation again, and no name of a response."""

import asyncio
import json
from contextlib import asynccontextmanager

import openai
import pytest
from support.gateway import keys
from support.openai_clients import answered, calling, socket

from antiphon.client import AsyncClient
from antiphon.model import ToolCall
from antiphon_gateway.access.access import Access

pytestmark = pytest.mark.one_server

MODEL = "scripted/any"
TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "note")]
ASK = {"role": "user", "content": "Look"}


def answers(request):
    """The model calls a tool, and then says what it was shown."""
    results = [one.text for message in request.messages for one in message.tool_results]
    return f"I saw {', '.join(results)}" if results else ToolCall("call_1", "look", {"at": [1.0, "ä"]})


@asynccontextmanager
async def stand(redis_url, said=answers, **options):
    async with calling(redis_url, said, **options) as (api, client):
        yield api, client
        async with AsyncClient(redis_url) as everything:
            async for one in everything.sessions():
                await everything.session(one.session_id, tenant=one.tenant).delete()


def result(text="a tree", call="call_1"):
    return {"type": "function_call_output", "call_id": call, "output": text}


def repeated(call):
    """A call as clients repeat it: without its id, and with arguments that they have parsed."""
    arguments = json.dumps(json.loads(call["arguments"]), indent=1, ensure_ascii=True).replace("1.0", "1")
    return {"type": "function_call", "call_id": call["call_id"], "name": call["name"], "arguments": arguments}


async def asked(client, *more, **options):
    return await client.responses.create(model=MODEL, input=[ASK, *more], tools=TOOLS, **options)


async def call_of(client, **options):
    made = await asked(client, **options)
    return repeated(made.output[-1].to_dict())


async def statuses(api):
    """The status of every turn."""
    sessions = (await api.get("/sessions"))["sessions"]
    turns = [(await api.get(f"/sessions/{one['session_id']}/turns"))["turns"] for one in sessions]
    return sorted(turn["status"] for found in turns for turn in found)


async def test_the_turn_that_waits_gets_them(redis_url):
    async with stand(redis_url) as (api, client):
        call = await call_of(client)
        made = await asked(client, call, result())
        assert (made.output_text, made.id[-2:]) == ("I saw a tree", ".1")
        assert await statuses(api) == ["finished"]
        again = await asked(client, call, result())
        assert (again.output_text, again.id == made.id) == ("I saw a tree", False), "asked for another answer"
        assert await statuses(api) == ["finished"] * 2


@pytest.mark.parametrize(
    "change", ["question", "call", "arguments", "tools", "instructions", "result", "more"]
)
async def test_a_conversation_that_has_changed_is_a_turn_of_its_own(redis_url, change):
    async with stand(redis_url) as (api, client):
        call, ask, more = await call_of(client), ASK, {}
        match change:
            case "question":
                ask = {"role": "user", "content": "Look again"}
            case "call":
                call["name"] = "note"
            case "arguments":
                call["arguments"] = '{"at": [1, "o"]}'
            case "tools":
                more = {"tools": TOOLS[:1]}
            case "instructions":
                more = {"instructions": "Be brief."}
            case "result":
                call["call_id"] = "call_2"
        items = [ask, call, result(call=call["call_id"]), *([ASK] if change == "more" else [])]
        made = await client.responses.create(**{"model": MODEL, "input": items, "tools": TOOLS, **more})
        assert (made.output_text, made.id.endswith(".1")) == ("I saw a tree", False)
        assert await statuses(api) == ["finished", "suspended"]


async def test_with_a_key_a_repetition_gets_the_same_response(redis_url):
    async with stand(redis_url) as (api, client):
        call = await call_of(client)
        first, second = await asyncio.gather(
            *(asked(client, call, result(), extra_headers={"Idempotency-Key": "k"}) for _ in range(2))
        )
        third = await asked(client, call, result(), extra_headers={"Idempotency-Key": "k"})
        assert first.output == second.output == third.output
        assert len({first.id, second.id, third.id}) == 1
        assert await statuses(api) == ["finished"]


async def test_of_two_requests_at_once_one_goes_on_and_the_other_is_a_turn_of_its_own(redis_url):
    async with stand(redis_url) as (api, client):
        call = await call_of(client)
        made = await asyncio.gather(*(asked(client, call, result(text)) for text in ("a tree", "a hill")))
        assert [one.output_text for one in made] == ["I saw a tree", "I saw a hill"]
        assert await statuses(api) == ["finished"] * 2


async def test_several_calls_need_all_of_their_results(redis_url):
    def both(request):
        return (
            answers(request)
            if request.messages[1:]
            else [ToolCall("call_1", "look", {}), ToolCall("call_2", "note", {})]
        )

    async with stand(redis_url, both) as (api, client):
        calls = [repeated(item.to_dict()) for item in (await asked(client)).output]
        with pytest.raises(openai.BadRequestError):
            await asked(client, *calls, result())
        assert await statuses(api) == ["suspended"]
        made = await asked(client, *calls, result("b", "call_2"), result("a"))
        assert made.output_text == "I saw a, b"
        assert await statuses(api) == ["finished"]


async def test_only_the_same_caller_is_given_the_turn(redis_url):
    known, secrets = keys(
        mine={"tenant": "a"},
        same_tenant={"tenant": "a"},
        other={"tenant": "b"},
        one={"tenant": "a", "sessions": ["x"]},
    )
    async with stand(redis_url, access=Access(known), key=secrets["mine"]) as (api, client):
        call = await call_of(client)
        for name in ("same_tenant", "other"):
            async with openai.AsyncOpenAI(
                base_url=f"{api.url}/v1", api_key=secrets[name], max_retries=0
            ) as stranger:
                made = await asked(stranger, call, result(name))
                assert (made.output_text, made.id.endswith(".1")) == (f"I saw {name}", False)
        assert (await asked(client, call, result("mine"))).id.endswith(".1")


async def test_over_a_websocket_what_is_not_stored_goes_on_at_its_own_connection_only(redis_url):
    fields = {"model": MODEL, "tools": TOOLS, "store": False}
    async with stand(redis_url) as (api, _), socket(api) as peer:
        call = repeated((await answered(peer, input=[ASK], **fields))[-1]["response"]["output"][-1])
        async with socket(api) as other:
            made = await answered(other, input=[ASK, call, result("there")], **fields)
            assert not made[-1]["response"]["id"].endswith(".1")
        made = await answered(peer, input=[ASK, call, result("here")], **fields)
        assert made[-1]["response"]["id"].endswith(".1")


async def test_wrong_values_are_refused(redis_url):
    async with stand(redis_url) as (api, client):
        call, deep = await call_of(client), "[" * 400 + "]" * 400
        for wrong in (
            result() | {"output": 7}, result() | {"call_id": 7}, result() | {"output": [{"type": "x"}]},
            result() | {"output": [{"type": "input_text", "text": json.loads(deep)}]},
        ):  # fmt: skip
            with pytest.raises(openai.BadRequestError):
                await asked(client, call, wrong)
        for arguments in (deep, "{", '{"n": 1e999}', "\x00", "[" * 100_000):
            with pytest.raises(openai.BadRequestError):
                await asked(client, call | {"arguments": arguments}, result("x", "call_9"))
        assert await statuses(api) == ["suspended"]


async def test_the_name_of_a_conversation_is_kept_for_a_day_and_tells_nothing(redis_url, redis):
    async with stand(redis_url) as (_, client):
        await call_of(client)
        (name,) = redis.scan_iter("ant:handed_out:*")
        assert 86_000 < redis.ttl(name) <= 86_400
        assert b"Look" not in name + redis.get(name)
