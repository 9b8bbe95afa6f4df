"""Remote agents that answer with what no agent should: the call ends with an error, and costs little."""

import asyncio
import json
import re
from contextlib import asynccontextmanager

import pytest
from google.protobuf.json_format import MessageToJson
from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from support.a2a_servers import Colleague
from support.here import running_worker
from support.serving import serving

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.testing import script, tool_call
from antiphon_worker import a2a
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(a2a, "RETRIES", 0)
    monkeypatch.setattr(a2a, "SHORTEST_PAUSE", 0.01)


def task(*parts, name="t", state="TASK_STATE_COMPLETED"):
    artifacts = [{"artifactId": "a", "parts": [*parts]}] if parts else []
    return {"id": name, "contextId": "c", "status": {"state": state}, "artifacts": artifacts}


def rpc(result):
    return Response(json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}), media_type="application/json")


def streamed(*chunks):
    return StreamingResponse(iter(chunks), media_type="text/event-stream")


@asynccontextmanager
async def calling(redis_url, answers, *, streaming=False, **options):
    """A turn that gives a task to an agent, whose answers are those of a function of the method, or of ``GET``."""
    colleague = Colleague(streaming=streaming)

    async def serve(request):
        method = "GET" if request.method == "GET" else (await request.json())["method"]
        found = answers(method, request)
        if asyncio.iscoroutine(found):
            found = await found
        return found or Response(MessageToJson(colleague.card()), media_type="application/json")

    app = Starlette(routes=[Route("/{path:path}", serve, methods=["GET", "POST"])])
    async with serving(app) as port, AsyncClient(redis_url) as client:
        colleague.url = f"http://127.0.0.1:{port}"
        calls = script(tool_call("colleague", input="Hello"), "Done.", repeat=True)
        agent = Agent(calls, "any", name="a", tools=[colleague.declared(**options)])
        async with running_worker(redis_url, App([agent])):
            yield await client.submit("s", "Go.", agent="a")


async def outcome(turn):
    [call] = (await turn.result(timeout=60)).tool_calls
    return call.result, call.is_error


MESSAGE = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x" * 2**20}]}
ODD = {  # the answer to a message, the answer when the task is read, what the model reads
    "another task": (task(), task({"text": "stolen"}, name="u"), "returns another task"),
    "a task without an id": (task(name=""), None, "whose id has 0 characters"),
    "an endless id": (task(name="i" * 900_000), None, "whose id has 900000 characters"),
    "millions of values": (task(), task(*[{}] * 1_000_000), "exceeds the limit a2a_values"),
    "a number that is none": (task(), task({"data": float("inf")}), "colleague: .* not JSON"),
    "a number beyond all numbers": (task(), task({"data": 10**400}), "colleague: .*too large"),
    "half a character": (task(), task({"text": "\ud800"}), "colleague: .* not JSON"),
    "data that is too deep": (task(), task({"data": json.loads("[" * 90 + "]" * 90)}), "colleague: .*too deep"),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
async def test_an_answer_that_cannot_be_used_is_an_error_of_the_agent(redis_url, odd):
    sent, read, said = ODD[odd]
    answers = {"SendMessage": {"task": sent}, "GetTask": read}
    async with calling(
        redis_url, lambda method, _: None if method == "GET" else rpc(answers[method])
    ) as turn:
        result, is_error = await outcome(turn)
    assert is_error
    assert re.search(said, result), result


async def test_a_message_that_the_journal_cannot_keep_is_asked_for_once(redis_url, monkeypatch):
    monkeypatch.setattr(a2a, "RETRIES", 2)
    called = []

    def answers(method, request):
        called.append(method)
        return None if method == "GET" else rpc({"message": MESSAGE})

    async with calling(redis_url, answers) as turn:
        result, is_error = await outcome(turn)
    assert is_error
    assert "is too large" in result
    assert called.count("SendMessage") == 1


async def test_an_agent_that_never_answers_a_message_takes_the_time_of_the_call_alone(redis_url):
    over = asyncio.Event()

    async def hang():
        await over.wait()
        return rpc({"task": task()})

    async with calling(redis_url, lambda method, _: None if method == "GET" else hang(), timeout=0.5) as turn:
        result, is_error = await outcome(turn)
        over.set()
    assert is_error
    assert "did not answer within 0.5 s" in result


@pytest.mark.parametrize("redirected", ["GET", "SendMessage", "GetTask"])
async def test_redirects_are_not_followed(redis_url, redirected):
    followed = []

    def answers(method, request):
        if request.url.path == "/elsewhere":
            followed.append(method)
        if method == redirected:
            return RedirectResponse("/elsewhere", 307)
        return None if method == "GET" else rpc({"task": task()})

    async with calling(redis_url, answers, auth=lambda requester: "secret-token") as turn:
        result, is_error = await outcome(turn)
    assert is_error
    assert "307" in result
    assert not followed


def update(text, name="t"):
    message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": text}]}
    status = {"state": "TASK_STATE_WORKING", "message": message}
    found = {"statusUpdate": {"taskId": name, "contextId": "c", "status": status}}
    return f"data: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': found})}\r\n\r\n"


async def test_a_stream_with_odd_events_is_left_for_the_task_itself(redis_url):
    """Events of another task are not shown, and a large event ends the stream before it is read."""
    streams = [[update("Not yours.", name="u")], [update("Page 1."), update("x" * 600_000)]]

    def answers(method, request):
        match method:
            case "GET":
                return None
            case "SubscribeToTask":
                return streamed(*streams.pop(0))
            case "SendMessage":
                return rpc({"task": task()})
            case _:
                return rpc(task(state="TASK_STATE_WORKING") if streams else task({"text": "It is done."}))

    async with calling(redis_url, answers, streaming=True) as turn:
        assert await outcome(turn) == ("It is done.", False)
        said = [event.text async for event in turn.stream() if event.type == "tool_progress"]
    assert {*said} == {"Page 1"}
