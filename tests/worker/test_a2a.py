"""Remote agents as tools: by agents that the official server of A2A serves."""

import asyncio
import gzip
import os
from contextlib import asynccontextmanager

import pytest
from a2a.client import A2ACardResolver
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, MessageToJson
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.a2a_servers import Colleague, digest
from support.eventually import wait_until_async
from support.gateway import stand as stage
from support.here import running_worker
from support.serving import serving
from support.stage import PLACES

from antiphon import Agent
from antiphon.a2a import RemoteAgent
from antiphon.client import AsyncClient
from antiphon.errors import TurnCancelled, UsageError
from antiphon.testing import script, tool_call
from antiphon_gateway import A2AAgent
from antiphon_worker.a2a import RETRIES
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


def app_of(tool, *inputs):
    calls = [tool_call("colleague", input=text) for text in inputs]
    return App([Agent(script(*calls, "Done.", repeat=True), "any", name="a", tools=[tool])])


@asynccontextmanager
async def stand(redis_url, *inputs, streaming=True, **options):
    """A colleague, and a worker with an agent that gives it these tasks."""
    async with (
        Colleague(streaming=streaming).running() as colleague, AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(colleague.declared(**options), *inputs)),
    ):  # fmt: skip
        yield colleague, client


async def results(client, **options):
    turn = await client.submit("s", "Go.", agent="a", **options)
    return [(call.result, call.is_error) for call in (await turn.result(timeout=60)).tool_calls]


async def waiting_for(turn):
    async def suspended():
        return (await turn.info()).waits

    [wait] = await wait_until_async(suspended, 20)
    return wait


@pytest.mark.main_path
@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent_of_another_system_is_a_tool(redis_url, streaming):
    async with stand(redis_url, "tell me", "message", streaming=streaming) as (colleague, client):
        assert await results(client) == [("I was told: tell me", False), ("A message.", False)]
        assert colleague.contexts == colleague.begun
        assert len(set(colleague.begun)) == 2


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_call_that_goes_to_another_worker_waits_for_the_same_task(redis_url, streaming):
    async with Colleague(streaming=streaming).running() as colleague, AsyncClient(redis_url) as client:
        app = app_of(colleague.declared(), "hold")
        turn = await client.submit("s", "Go.", agent="a")
        async with running_worker(redis_url, app):
            await wait_until_async(lambda: _recorded(client, turn), 20)
        colleague.let_go.set()
        async with running_worker(redis_url, app):
            [call] = (await turn.result(timeout=30)).tool_calls
    assert (call.result, call.is_error, len(colleague.begun)) == ("Held.", False, 1)


async def test_a_worker_that_is_killed_leaves_the_task_to_another(redis_url, processes):
    async with Colleague().running() as colleague, AsyncClient(redis_url) as client:
        env = {
            "COLLEAGUE": colleague.url,
            "ANTIPHON_APP": "support.a2a_boss:app",
            "PYTHONPATH": os.pathsep.join(PLACES),
        }
        turn = await client.submit("s", "Go.", agent="a")
        for _ in range(2):
            worker = processes.worker(redis_url, "--lease", "2", env=env)
            await asyncio.to_thread(worker.wait_for_output, "takes turns")
            await wait_until_async(lambda: _recorded(client, turn), 30)
            worker.kill()
        worker = processes.worker(redis_url, "--lease", "2", env=env)
        colleague.let_go.set()
        response = await turn.result(timeout=60)
        info = await turn.info()
    assert [(call.result, call.is_error) for call in response.tool_calls] == [("Held.", False)]
    assert "agent-card.json" not in worker.output  # its package would log each request
    assert (len(colleague.begun), info.status) == (1, "finished")


async def _recorded(client, turn):
    cell = client.connections.cell_of_session("s")
    return any(
        b"step_recorded" in fields[b"e"] for _, fields in await cell.redis.xrange(cell.keys.events("s"))
    )


async def test_what_the_agent_asks_suspends_the_turn_until_it_is_answered(redis_url):
    async with Colleague().running() as colleague, AsyncClient(redis_url) as client:
        app = app_of(colleague.declared(), "ask me")
        turn = await client.submit("s", "Go.", agent="a", tenant="acme")
        async with running_worker(redis_url, app):
            wait = await waiting_for(turn)
        assert wait.about["questions"]["input"]["message"] == "Which colour?"
        answer = {"input": {"action": "accept", "content": {"answer": "blue"}}}
        await client.send_event(wait.event, answer, tenant="acme")
        async with running_worker(redis_url, app):
            [call] = (await turn.result(timeout=30)).tool_calls
    assert (call.result, call.is_error) == ("You chose blue.", False)
    assert (len(colleague.begun), colleague.answers) == (1, ["blue"])


@asynccontextmanager
async def answering(redis_url, answers, **options):
    """An agent that answers requests of JSON-RPC by a function of their method, and a worker that calls it."""

    async def serve(request):
        if request.method == "GET":
            return Response(MessageToJson(colleague.card()), media_type="application/json")
        asked = await request.json()
        result = MessageToDict(answers(asked["method"]))
        return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    colleague = Colleague(streaming=False)
    app = Starlette(routes=[Route("/{path:path}", serve, methods=["GET", "POST"])])
    async with serving(app) as port, AsyncClient(redis_url) as client:
        colleague.url = f"http://127.0.0.1:{port}"
        async with running_worker(redis_url, app_of(colleague.declared(**options), "Hello")):
            yield client


@pytest.mark.parametrize("message_id", ["q1", ""])
async def test_a_question_that_is_still_shown_after_its_answer_is_not_asked_again(redis_url, message_id):
    asking = pb.Task(id="t", context_id="c")
    asking.status.state = pb.TASK_STATE_INPUT_REQUIRED
    asking.status.timestamp.FromMilliseconds(1000)
    asking.status.message.CopyFrom(
        pb.Message(message_id=message_id, role=pb.ROLE_AGENT, parts=[pb.Part(text="Which colour?")])
    )
    done = pb.Task(id="t", context_id="c", status=pb.TaskStatus(state=pb.TASK_STATE_COMPLETED))
    done.artifacts.add(artifact_id="a").parts.add(text="Blue it is.")
    called = []

    def answers(method):
        called.append(method)
        if method == "SendMessage":
            return pb.SendMessageResponse(task=asking)
        return done if called[-3:] == ["SendMessage", "GetTask", "GetTask"] and len(called) > 4 else asking

    async with answering(redis_url, answers) as client:
        turn = await client.submit("s", "Go.", agent="a")
        wait = await waiting_for(turn)
        await client.send_event(wait.event, {"input": {"action": "accept", "content": {"answer": "blue"}}})
        [call] = (await turn.result(timeout=10)).tool_calls
    assert (call.result, call.is_error) == ("Blue it is.", False)
    assert called == ["SendMessage", "GetTask", "SendMessage", "GetTask", "GetTask"]


async def test_a_question_that_is_declined_cancels_the_task(redis_url):
    async with stand(redis_url, "ask me") as (colleague, client):
        turn = await client.submit("s", "Go.", agent="a")
        wait = await waiting_for(turn)
        await client.send_event(wait.event, {"input": {"action": "decline"}})
        [call] = (await turn.result(timeout=30)).tool_calls
        assert (call.result, call.is_error) == ("The user did not answer the question of colleague.", True)
        assert len(colleague.cancelled) == 1


async def test_each_call_has_the_credentials_of_its_user_and_no_result_has_them(redis_url):
    async def token(requester):
        return f"secret-{requester.tenant}-{requester.user}-{requester.server}"

    async with stand(redis_url, "whoami", "repeat", auth=token) as (_, client):
        for user in ("ada", "bob"):
            turn = await client.submit(f"s-{user}", "Go.", agent="a", tenant="acme", user=user)
            who, repeated = (await turn.result(timeout=30)).tool_calls
            assert who.result == digest(f"Bearer secret-acme-{user}-colleague")
            assert repeated.result == "You sent [credentials]."


async def test_a_task_that_does_not_complete_is_an_error_of_the_call(redis_url):
    async with stand(redis_url, "fail", "reject") as (_, client):
        assert await results(client) == [
            ("The task of colleague has failed: It broke.", True),
            ("The task of colleague was rejected.", True),
        ]


async def test_a_message_whose_answer_is_lost_is_sent_again_and_begins_one_task(redis_url, tmp_path):
    """The other agent is one of ours. Its answers to the first two messages are lost."""
    lost: list[bytes] = []

    async with stage(redis_url, tmp_path, a2a=[A2AAgent("stage")]) as (_, _, gateway):

        async def losing(scope, receive, send):
            async def without_answer(message):
                if len(lost) < 2 and scope["method"] == "POST":
                    lost.append(scope["raw_path"])
                    raise ConnectionError("The connection is lost.")
                await send(message)

            await gateway(scope, receive, without_answer if scope["type"] == "http" else send)

        async with serving(losing) as port, AsyncClient(redis_url) as client:
            tool = RemoteAgent(f"http://127.0.0.1:{port}/a2a/stage", name="colleague")
            async with running_worker(redis_url, app_of(tool, "Hello"), queues=("own",)):
                turn = await client.submit("s", "Go.", agent="a", queue="own")
                [call] = (await turn.result(timeout=30)).tool_calls
            begun = [one.session_id async for one in client.sessions() if one.session_id != "s"]
    assert (call.is_error, call.result[:15], len(begun), len(lost)) == (False, "The first words", 1, 2)


async def test_files_of_an_answer_reach_the_model(redis_url):
    async with stand(redis_url, "files") as (_, client):
        turn = await client.submit("s", "Go.", agent="a")
        response = await turn.result(timeout=30)
        [result] = [one for message in response.messages for one in message.tool_results]
        kinds = [(part.__struct_config__.tag, getattr(part, "text", "")) for part in result.content]
        assert kinds == [
            ("text", "See: "),
            ("image", ""),
            ("text", '{"a":1.0}'),
            ("text", "a: https://example.com/a"),
        ]


async def test_an_answer_that_is_too_large_is_an_error(redis_url):
    async with stand(redis_url, "huge") as (_, client):
        [(said, is_error)] = await results(client)
        assert is_error
        assert "more than 4194304 bytes" in said


async def test_an_answer_that_is_compressed_is_an_error(redis_url):
    """Nobody has asked for compression, and it would hide how large the answer is."""

    async def compressing(scope, receive, send):
        if scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": gzip.compress(b" " * 5_000_000 + b"{}")})

    async with serving(compressing) as port, AsyncClient(redis_url) as client:
        tool = RemoteAgent(f"http://127.0.0.1:{port}", name="colleague")
        async with running_worker(redis_url, app_of(tool, "Hello")):
            [(said, is_error)] = await results(client)
    assert is_error
    assert "compressed" in said


async def test_credentials_in_the_id_of_a_task_do_not_reach_the_journal(redis_url):
    found = pb.SendMessageResponse(task=pb.Task(id="task-secret-token", context_id="c"))
    async with answering(redis_url, lambda method: found, auth=lambda requester: "secret-token") as client:
        [(said, is_error)] = await results(client)
    assert is_error
    assert "repeats credentials" in said
    assert "secret-token" not in said


async def test_a_call_that_takes_too_long_cancels_its_task(redis_url):
    async with stand(redis_url, "hold", timeout=1) as (colleague, client):
        assert await results(client) == [
            ("colleague did not answer within 1 s; it was asked to cancel its task.", True)
        ]
        assert len(colleague.cancelled) == 1


async def test_a_card_that_sends_callers_elsewhere_is_not_followed(redis_url):
    colleague = Colleague()
    colleague.elsewhere = "http://127.0.0.1:9/"
    async with (
        colleague.running(), AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(colleague.declared(auth=lambda requester: "secret-token"), "x")),
    ):  # fmt: skip
        [(said, is_error)] = await results(client)
        assert is_error
        assert "names no address at" in said
        assert not colleague.begun


async def test_an_agent_that_cannot_be_reached_is_an_error(redis_url, monkeypatch):
    asked, fetch = [], A2ACardResolver.get_agent_card

    async def counted(resolver, *given, **options):
        asked.append(resolver.base_url)
        return await fetch(resolver, *given, **options)

    monkeypatch.setattr(A2ACardResolver, "get_agent_card", counted)
    tool = RemoteAgent("http://127.0.0.1:9", name="colleague")
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_of(tool, "x")):
        [(said, is_error)] = await results(client)
    assert is_error
    assert "colleague: Network communication error" in said
    assert "http://127.0.0.1:9/" in said
    assert said.endswith("All connection attempts failed")
    assert asked == ["http://127.0.0.1:9"] * (1 + RETRIES)


@pytest.mark.parametrize(
    "options",
    [{"url": "ftp://x"}, {"url": "https://u:p@x"}, {"auth": "token"}, {"headers": {"a": 1}}, {"timeout": 0}],
)
def test_a_wrong_declaration_is_refused(options):
    with pytest.raises(UsageError):
        RemoteAgent(**{"url": "https://example.com", "name": "x", **options})


async def test_a_cancelled_turn_cancels_the_task_that_it_waits_for(redis_url):
    async with stand(redis_url, "hold") as (colleague, client):
        turn = await client.submit("s", "Go.", agent="a")
        async for event in turn.stream():
            if event.type == "step_recorded":
                break  # the id of the task is in the journal
        await turn.cancel("enough")
        with pytest.raises(TurnCancelled):
            await turn.result(30)
        await wait_until_async(lambda: len(colleague.cancelled) == 1, 20)


async def test_a_cancelled_turn_cancels_the_task_whose_question_is_open(redis_url):
    async with stand(redis_url, "ask me") as (colleague, client):
        turn = await client.submit("s", "Go.", agent="a")
        await waiting_for(turn)
        await turn.cancel("enough")
        with pytest.raises(TurnCancelled):
            await turn.result(30)
        await wait_until_async(lambda: len(colleague.cancelled) == 1, 20)
