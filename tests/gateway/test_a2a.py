"""A2A: agents of the workers as other agents call them, by the official client for Python."""

import asyncio
import json
import signal
from contextlib import AsyncExitStack

import pytest
from a2a.client import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from support.a2a_clients import BINDINGS, Follower, a2a_client, answer, followed, said, sent
from support.clients import running
from support.ensemble import open_ensemble, signal_process
from support.eventually import patience, wait_until_async
from support.gateway import keys, open_gateway, stand
from support.here import running_worker
from support.stage import FIRST_WORDS

from antiphon import Agent, tool
from antiphon.testing import script, tool_call
from antiphon.tools import CallerTool
from antiphon_gateway import A2AAgent, Access, Limits, Skill
from antiphon_gateway.a2a import methods
from antiphon_gateway.a2a.parts import plain
from antiphon_gateway.access.caller import Caller
from antiphon_worker.app import App


def data_part(value):
    return pb.Part(data=ParseDict(value, Value()), media_type="application/json")


pytestmark = pytest.mark.one_server

SPOKEN = {"a2a-version": "1.0", "content-type": "application/json"}
LATER = pb.SendMessageConfiguration(return_immediately=True)
STAGE = A2AAgent("stage", description="Answers.", skills=[Skill("answer", description="Answers.")])


@pytest.mark.main_path
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_is_a_turn_and_its_task_has_the_answer(redis_url, tmp_path, binding):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage", binding=binding) as client,
    ):
        task = await sent(client, said("Hello", metadata={"trace": 1}))
        assert task.status.state == pb.TASK_STATE_COMPLETED
        assert answer(task).startswith(FIRST_WORDS)
        assert [part.text for message in task.history for part in message.parts] == ["Hello", answer(task)]
        turn = await api.get(f"/turns/{task.id}")
        assert (turn["session_id"], turn["agent"]) == (task.context_id, "stage")
        assert turn["metadata"]["a2a"]["metadata"] == {"trace": 1}
        again = await client.get_task(pb.GetTaskRequest(id=task.id))
        assert again == task
        more = await sent(client, said("And now?", context_id=task.context_id))
        assert more.context_id == task.context_id
        assert more.id != task.id
        listed = await client.list_tasks(pb.ListTasksRequest(context_id=task.context_id))
        assert [one.id for one in listed.tasks] == [more.id, task.id]
        assert not any(one.artifacts for one in listed.tasks)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_updates_are_streamed_as_they_come(redis_url, tmp_path, binding):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage", binding=binding, streaming=True) as client,
    ):
        seen = await followed(client.send_message(said("words:3")))
        assert seen.states == ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
        assert seen.pieces > 3
        assert seen.text == answer(await client.get_task(pb.GetTaskRequest(id=seen.task.id)))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_approval_is_asked_for_and_given_by_a_message(redis_url, tmp_path, binding):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (ensemble, api, _),
        a2a_client(f"{api.url}/a2a/stage", binding=binding, streaming=True) as streaming,
        a2a_client(f"{api.url}/a2a/stage", binding=binding) as client,
    ):
        seen = await followed(streaming.send_message(said("tool:guarded")))
        assert seen.states[-1] == "TASK_STATE_INPUT_REQUIRED"
        task = await client.get_task(pb.GetTaskRequest(id=seen.task.id))
        assert task.status.state == pb.TASK_STATE_INPUT_REQUIRED
        question, data = task.status.message.parts
        assert question.text.startswith("May guarded run with ")
        (call,) = plain(data.data)["calls"]
        assert (call["name"], call["kind"]) == ("guarded", "approval")
        yes = said("Approve.", task_id=task.id, context_id=task.context_id)
        done = await sent(client, yes)
        assert done.status.state == pb.TASK_STATE_COMPLETED
        assert len(ensemble.stage.notes("tool", tool="guarded")) == 1
        with pytest.raises(UnsupportedOperationError):
            await sent(client, said("And?", task_id=task.id))

        asked = await sent(client, said("tool:guarded", context_id=task.context_id))
        no = [
            data_part({"decisions": [{"callId": call["callId"], "approved": False, "reason": "Not today."}]})
        ]
        refused = await sent(client, said(parts=no, task_id=asked.id))
        assert refused.status.state == pb.TASK_STATE_COMPLETED
        (decision,) = (await api.get(f"/turns/{asked.id}"))["decisions"]
        assert (decision["kind"], decision["reason"], decision["by"]) == (
            "reject",
            "Not today.",
            "this machine",
        )
        assert len(ensemble.stage.notes("tool", tool="guarded")) == 1


async def test_an_answer_that_is_sent_twice_counts_once(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (ensemble, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        asked = await sent(client, said("tool:guarded gate:g"))
        yes = said("approve", task_id=asked.id, configuration=LATER)
        await sent(client, yes)
        await ensemble.waits("g")
        again = await sent(client, yes)
        assert (again.id, again.status.state) == (asked.id, pb.TASK_STATE_WORKING)
        with pytest.raises(UnsupportedOperationError):
            await sent(client, said("approve", task_id=asked.id))
        ensemble.stage.open("g")


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"{amount} paid"


@pytest.mark.parametrize("below", [False, True])
async def test_an_answer_that_is_sent_again_decides_nothing_else(redis_url, below):
    """The next call waits already when the message comes again, and also when the turn has ended."""
    payer = Agent(
        script(tool_call("pay", amount=1), tool_call("pay", amount=2), "Paid."),
        "any",
        name="payer",
        tools=[pay],
    )
    boss = Agent(
        script(tool_call("payer", input="Pay."), "Done."), "any", name="boss", tools=[payer.as_tool()]
    )
    name = "boss" if below else "payer"
    async with (
        running_worker(redis_url, App([payer, boss])), open_gateway(redis_url, a2a=[A2AAgent(name)]) as (api, _),
        a2a_client(f"{api.url}/a2a/{name}") as client,
    ):  # fmt: skip
        first = await sent(client, said("Go."))
        yes = said("approve", task_id=first.id)
        second = await sent(client, yes)
        asked = plain(second.status.message.parts[1].data)["calls"]
        assert asked != plain(first.status.message.parts[1].data)["calls"]
        for again in await asyncio.gather(*(sent(client, yes) for _ in range(3))):
            assert plain(again.status.message.parts[1].data)["calls"] == asked
        done = await sent(client, said("approve", task_id=first.id))
        assert done.status.state == pb.TASK_STATE_COMPLETED
        assert (await sent(client, yes)).id == done.id


async def test_a_message_to_a_caller_with_too_many_streams_decides_nothing(redis_url):
    payer = Agent(script(tool_call("pay", amount=1), "Paid."), "any", name="payer", tools=[pay])
    async with (
        running_worker(redis_url, App([payer])),
        open_gateway(redis_url, a2a=[A2AAgent("payer")], limits=Limits(streams=0)) as (api, _),
        a2a_client(f"{api.url}/a2a/payer") as client,
    ):
        task = await sent(client, said("Go.", configuration=LATER))

        async def waits() -> bool:
            return (await api.get(f"/turns/{task.id}"))["status"] == "suspended"

        await wait_until_async(waits, 20)
        with pytest.raises(A2AClientError, match="429"):
            await sent(client, said("approve", task_id=task.id))
        assert not (await api.get(f"/turns/{task.id}")).get("decisions")
        await client.cancel_task(pb.CancelTaskRequest(id=task.id))


async def test_a_cancellation_that_takes_long_returns_the_task(redis_url, tmp_path, processes, monkeypatch):
    monkeypatch.setattr(methods, "CANCEL_SECONDS", 0)
    async with (
        open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble,
        open_gateway(redis_url, a2a=[STAGE]) as (api, _), a2a_client(f"{api.url}/a2a/stage") as client,
    ):  # fmt: skip
        ensemble.supervisor().ready()
        task = await sent(client, said("gate:g", configuration=LATER))
        worker = await ensemble.waits("g")
        signal_process(worker, signal.SIGSTOP)  # so that it does not hear of it
        returned = await client.cancel_task(pb.CancelTaskRequest(id=task.id))
        signal_process(worker, signal.SIGCONT)
        assert (returned.id, returned.status.state) == (task.id, pb.TASK_STATE_WORKING)

        async def cancelled():
            found = await client.get_task(pb.GetTaskRequest(id=task.id))
            return found.status.state == pb.TASK_STATE_CANCELED

        await wait_until_async(cancelled, 20, "the task is cancelled")


async def test_a_wrong_answer_leaves_the_task_as_it_is(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        asked = await sent(client, said("tool:guarded"))
        for wrong in ({"decisions": [{"callId": "no", "approved": True}]}, {"decisions": [{"callId": "call_1"}]},
                      {"answers": {"x": 1}}, {"approved": "yes"}):  # fmt: skip
            with pytest.raises(InvalidParamsError):
                await sent(client, said(parts=[data_part(wrong)], task_id=asked.id))
        with pytest.raises(InvalidParamsError):
            await sent(client, said("approve", task_id=asked.id, context_id="another"))
        task = await client.get_task(pb.GetTaskRequest(id=asked.id))
        assert task.status.state == pb.TASK_STATE_INPUT_REQUIRED
        await client.cancel_task(pb.CancelTaskRequest(id=asked.id))  # keys of a turn that waits have no end


async def test_a_task_is_cancelled_once(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (ensemble, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        task = await sent(client, said("gate:g", configuration=LATER))
        await ensemble.waits("g")
        cancelled = await client.cancel_task(pb.CancelTaskRequest(id=task.id))
        assert cancelled.status.state == pb.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
        async with a2a_client(f"{api.url}/a2a/stage", streaming=True) as streaming:
            with pytest.raises(UnsupportedOperationError):
                await followed(streaming.subscribe(pb.SubscribeToTaskRequest(id=task.id)))


async def test_a_failure_is_told_in_a_sentence_for_users(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
        a2a_client(f"{api.url}/a2a/stage", streaming=True) as streaming,
    ):
        task = await sent(client, said("fail:rejected"))
        assert task.status.state == pb.TASK_STATE_FAILED
        told = task.status.message
        assert "The stage" not in told.parts[0].text
        assert plain(told.metadata) == {"code": "provider_rejected"}
        seen = await followed(streaming.send_message(said("fail:rejected")))
        assert seen.states[-1] == "TASK_STATE_FAILED"


async def test_a_message_that_is_sent_again_joins_its_task(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (ensemble, api, _),
        open_gateway(redis_url, a2a=[STAGE]) as (other, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
        a2a_client(f"{other.url}/a2a/stage", binding="HTTP+JSON") as elsewhere,
    ):
        first = said("gate:g", configuration=LATER)
        tasks = await asyncio.gather(*(sent(one, first) for one in (client, elsewhere) * 4))
        assert len({task.id for task in tasks}) == 1
        ensemble.stage.open("g")
        await api.result(tasks[0].id)
        named = said("Hello", context_id="c")
        once, again = await sent(client, named), await sent(elsewhere, named)
        assert once == again
        changed = said("Other", context_id="c", message_id=named.message.message_id)
        with pytest.raises(InvalidParamsError):
            await sent(client, changed)


async def test_an_id_that_is_used_again_later_or_for_something_else_begins_another_task(redis_url, tmp_path):
    """The protocol's own test suite uses one id for many messages without a context."""
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        asked = said("tool:guarded", message_id="m")
        first, joined = await sent(client, asked), await sent(client, asked)
        assert joined.id == first.id
        other = await sent(client, said("Hello", message_id="m"))
        assert other.status.state == pb.TASK_STATE_COMPLETED
        assert (await sent(client, said("approve", message_id="m", task_id=first.id))).id == first.id
        again = await sent(client, asked)
        assert (again.status.state, again.id != first.id) == (pb.TASK_STATE_INPUT_REQUIRED, True)
        assert len({first.context_id, other.context_id, again.context_id}) == 3
        await client.cancel_task(pb.CancelTaskRequest(id=again.id))


async def test_a_message_may_answer_some_of_several_calls(redis_url):
    @tool(approval=True)
    def pay(amount: int) -> str:
        return f"{amount} paid"

    calls = [tool_call("pay", amount=1), tool_call("pay", amount=2)]
    app = App([Agent(script(calls, "Paid."), "any", name="payer", tools=[pay])])
    async with (
        running_worker(redis_url, app), open_gateway(redis_url, a2a=[A2AAgent("payer")]) as (api, _),
        a2a_client(f"{api.url}/a2a/payer") as client,
    ):  # fmt: skip
        task = await sent(client, said("Pay."))
        with pytest.raises(InvalidParamsError, match="Several answers"):
            await sent(client, said("approve", task_id=task.id))
        pending = [call["callId"] for call in plain(task.status.message.parts[1].data)["calls"]]
        for left, call in zip((1, 0), pending, strict=True):
            decision = data_part({"decisions": [{"callId": call, "approved": True}]})
            task = await sent(client, said(parts=[decision], task_id=task.id))
            assert (task.status.state == pb.TASK_STATE_INPUT_REQUIRED) is bool(left)
        assert answer(task) == "Paid."


async def test_a_key_in_the_header_makes_a_message_run_once_without_a_context(redis_url, tmp_path):
    async with stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _):
        found = []
        for key in ("k", "k", "other"):
            body, headers = {"message": MESSAGE}, {**SPOKEN, "idempotency-key": key}
            answered = await api.http.post("/a2a/stage/message:send", json=body, headers=headers)
            found.append(answered.json()["task"]["id"])
        assert found[0] == found[1] != found[2]


async def test_a_client_side_tool_is_answered_by_a_message(redis_url):
    tool = CallerTool(
        "open_page", "Open a page.", {"type": "object", "properties": {"url": {"type": "string"}}}
    )
    said_by_model = script(tool_call("open_page", url="https://example.com"), "Done.", repeat=True)
    app = App([Agent(said_by_model, "any", name="guide", caller_tools=[tool])])
    answers = {
        "Welcome": [pb.Part(text="Welcome")],
        '{"title":"Welcome"}': [data_part({"title": "Welcome"})],
        "none": [data_part({"decisions": [{"callId": "CALL", "result": "none", "isError": True}]})],
    }
    async with (
        running_worker(redis_url, app), open_gateway(redis_url, a2a=[A2AAgent("guide")]) as (api, _),
        a2a_client(f"{api.url}/a2a/guide") as client,
    ):  # fmt: skip
        for expected, parts in answers.items():
            asked = await sent(client, said("Where am I?", metadata={"user": "ada"}))
            question, data = asked.status.message.parts
            (call,) = plain(data.data)["calls"]
            assert (call["name"], call["kind"]) == ("open_page", "tool")
            assert question.text == 'What is the result of open_page with {"url":"https://example.com"}?'
            if expected == "none":
                parts[0].data.struct_value["decisions"][0]["callId"] = call["callId"]
            done = await sent(client, said(parts=parts, task_id=asked.id))
            assert (done.status.state, answer(done)) == (pb.TASK_STATE_COMPLETED, "Done.")
            turn = await api.get(f"/turns/{done.id}")
            (result,) = [
                part for one in turn["messages"] for part in one["parts"] if part["type"] == "tool_result"
            ]
            assert (result["content"], result.get("is_error", False)) == (expected, expected == "none")
            assert (turn["user"], turn["decisions"][0]["by"]) == ("ada", "this machine")


async def test_calls_of_a_sub_agent_are_answered_at_the_task(redis_url, tmp_path):
    @tool(approval=True)
    def refund(amount: int) -> str:
        return f"{amount} refunded"

    clerk = Agent(script(tool_call("refund", amount=3), "Refunded."), "any", name="clerk", tools=[refund])
    boss = Agent(
        script(tool_call("clerk", input="Refund 3"), "All done."), "any", name="boss", tools=[clerk.as_tool()]
    )
    async with (
        running_worker(redis_url, App([boss, clerk])), open_gateway(redis_url, a2a=[A2AAgent("boss")]) as (api, _),
        a2a_client(f"{api.url}/a2a/boss") as client, a2a_client(f"{api.url}/a2a/boss", streaming=True) as streaming,
    ):  # fmt: skip
        seen = await followed(streaming.send_message(said("Go.")))
        assert seen.states[-1] == "TASK_STATE_INPUT_REQUIRED"
        done = await sent(client, said("approve", task_id=seen.task.id))
        assert (done.status.state, answer(done)) == (pb.TASK_STATE_COMPLETED, "All done.")


async def test_a_reader_that_comes_back_misses_nothing(redis_url, tmp_path):
    """Each connection to another gateway takes up the stream at the update that was seen last."""
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (ensemble, api, _),
        open_gateway(redis_url, a2a=[STAGE]) as (other, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        task = await sent(client, said("words:40 gate:g", configuration=LATER))
        path, seen, last = f"/a2a/stage/tasks/{task.id}:subscribe", "", ""
        for number in range(20):
            headers = {**SPOKEN, **({"last-event-id": last} if last else {})}
            where = (api, other)[number % 2]
            if shown := seen.endswith("39 "):
                ensemble.stage.open("g")
            async with where.http.stream("POST", path, headers=headers) as answered:
                assert answered.status_code == 200
                found = Follower()
                async for line in answered.aiter_lines():
                    if line.startswith("id: "):
                        last = line[4:]
                    if line.startswith("data: "):
                        found.take(ParseDict(json.loads(line[6:]), pb.StreamResponse()))
                        seen = found.text
                        if found.pieces == 9 or (seen.endswith("39 ") and not shown):
                            break
                if found.states[-1] == "TASK_STATE_COMPLETED":
                    break
        assert found.states[-1] == "TASK_STATE_COMPLETED"
        assert seen == answer(await client.get_task(pb.GetTaskRequest(id=task.id)))


async def test_streams_of_one_task_bring_the_same_updates(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        asked = await sent(client, said("tool:guarded"))
        path = f"/a2a/stage/tasks/{asked.id}:subscribe"

        async def read() -> list[str]:
            async with api.http.stream("POST", path, headers=SPOKEN) as answered:
                lines = answered.aiter_lines()
                found = [await anext(lines)]
                opened.put_nowait(None)
                return [*found, *[line async for line in lines]]

        opened: asyncio.Queue[None] = asyncio.Queue()
        readers = [asyncio.create_task(read()) for _ in range(3)]
        for _ in readers:
            await opened.get()
        await sent(client, said("approve", task_id=asked.id))
        first, *others = await asyncio.gather(*readers)
        assert all(lines == first for lines in others)
        assert "TASK_STATE_COMPLETED" in first[-2]


async def test_a_caller_sees_only_the_tasks_of_its_tenant_and_agent(redis_url, tmp_path):
    known, secrets = keys(
        acme={"tenant": "acme"}, other={"tenant": "other"}, reader={"tenant": "acme", "rights": ["read"]},
        few={"tenant": "acme", "sessions": ["own-*"]},
    )  # fmt: skip
    agents = [STAGE, A2AAgent("understudy")]
    async with stand(redis_url, tmp_path, a2a=agents, access=Access(known)) as (_, api, _):
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(a2a_client(f"{api.url}/a2a/stage", key=key))
                for name, key in secrets.items()
            }
            task = await sent(clients["acme"], said("Hello"))
            for name in ("other", "few"):
                one = clients[name]
                with pytest.raises(TaskNotFoundError):
                    await one.get_task(pb.GetTaskRequest(id=task.id))
                with pytest.raises(TaskNotFoundError):
                    await one.cancel_task(pb.CancelTaskRequest(id=task.id))
                with pytest.raises(TaskNotFoundError):
                    await sent(one, said("approve", task_id=task.id))
                async with a2a_client(f"{api.url}/a2a/stage", key=secrets[name], streaming=True) as streaming:
                    with pytest.raises(TaskNotFoundError):
                        await followed(streaming.subscribe(pb.SubscribeToTaskRequest(id=task.id)))
                assert not (await one.list_tasks(pb.ListTasksRequest())).tasks
                assert not (await one.list_tasks(pb.ListTasksRequest(context_id=task.context_id))).tasks
            assert (await clients["reader"].get_task(pb.GetTaskRequest(id=task.id))).id == task.id
            for refused in (
                clients["reader"].cancel_task(pb.CancelTaskRequest(id=task.id)),
                sent(clients["reader"], said("Hello")),
                sent(clients["few"], said("Hello", context_id="others")),
            ):
                with pytest.raises(A2AClientError, match="403"):
                    await refused
            mine = await sent(clients["few"], said("Hello"))
            assert mine.context_id.startswith("own-")
            assert {one.id for one in (await clients["acme"].list_tasks(pb.ListTasksRequest())).tasks} == {
                task.id, mine.id,
            }  # fmt: skip
            understudy = await stack.enter_async_context(
                a2a_client(f"{api.url}/a2a/understudy", key=secrets["acme"])
            )
            with pytest.raises(TaskNotFoundError):
                await understudy.get_task(pb.GetTaskRequest(id=task.id))
        unknown = await api.http.post("/a2a/stage", json={}, headers=SPOKEN)
        assert (unknown.status_code, unknown.json()["error"]["data"][0]["reason"]) == (401, "UNAUTHORIZED")
        assert unknown.headers["www-authenticate"] == "Bearer"


async def test_tasks_are_listed_page_by_page_the_last_change_first(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage", binding="HTTP+JSON") as client,
    ):
        tasks = [await sent(client, said(f"{number}")) for number in range(5)]
        waiting = await sent(client, said("tool:guarded"))
        wanted = [waiting.id, *(task.id for task in reversed(tasks))]
        found, token = list[str](), ""
        while True:
            page = await client.list_tasks(pb.ListTasksRequest(page_size=2, page_token=token))
            assert (page.total_size, page.page_size) == (6, 2)
            found += [task.id for task in page.tasks]
            if not (token := page.next_page_token):
                break
        assert found == wanted
        done = pb.ListTasksRequest(status=pb.TASK_STATE_COMPLETED, include_artifacts=True, history_length=1)
        page = await client.list_tasks(done)
        assert [task.id for task in page.tasks] == wanted[1:]
        assert all(task.artifacts and len(task.history) == 1 for task in page.tasks)
        since = pb.ListTasksRequest(status_timestamp_after=waiting.status.timestamp)
        assert [task.id for task in (await client.list_tasks(since)).tasks] == [waiting.id]
        for wrong in (pb.ListTasksRequest(page_size=0), pb.ListTasksRequest(page_size=101),
                      pb.ListTasksRequest(page_token="x"), pb.ListTasksRequest(history_length=-1)):  # fmt: skip
            with pytest.raises(InvalidParamsError):
                await client.list_tasks(wrong)
        await client.cancel_task(pb.CancelTaskRequest(id=waiting.id))


async def test_a_history_is_as_long_as_asked_for(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        task = await sent(
            client, said("Hello", message_id="m", configuration=pb.SendMessageConfiguration(history_length=0))
        )
        assert not task.history
        whole = await client.get_task(pb.GetTaskRequest(id=task.id))
        assert [one.role for one in whole.history] == [pb.ROLE_USER, pb.ROLE_AGENT]
        assert whole.history[0].message_id == "m"
        last = await client.get_task(pb.GetTaskRequest(id=task.id, history_length=1))
        assert [one.role for one in last.history] == [pb.ROLE_AGENT]


async def test_cards_say_where_agents_are_and_how_callers_authenticate(redis_url, tmp_path):
    known, _ = keys(acme={"tenant": "acme"})
    agents = [STAGE, A2AAgent("understudy", url="https://agents.example.com/", organization="Example")]
    async with stand(redis_url, tmp_path, a2a=agents, access=Access(known)) as (_, api, _):
        first = await api.http.get("/.well-known/agent-card.json")
        assert first.json() == (await api.get("/a2a/stage/.well-known/agent-card.json"))
        assert [(one["url"], one["protocolBinding"]) for one in first.json()["supportedInterfaces"]] == [
            (f"{api.url}/a2a/stage", "JSONRPC"), (f"{api.url}/a2a/stage", "HTTP+JSON"),
        ]  # fmt: skip
        assert first.json()["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"] == "Bearer"
        assert first.json()["capabilities"] == {
            "streaming": True, "pushNotifications": True, "extendedAgentCard": False,
        }  # fmt: skip
        assert "max-age=" in first.headers["cache-control"]
        same = await api.http.get(
            "/.well-known/agent-card.json", headers={"if-none-match": first.headers["etag"]}
        )
        assert same.status_code == 304
        other = await api.get("/a2a/understudy/.well-known/agent-card.json")
        assert other["supportedInterfaces"][0]["url"] == "https://agents.example.com/a2a/understudy"
        assert (await api.http.get("/a2a/nobody/.well-known/agent-card.json")).status_code == 404
    async with open_gateway(redis_url) as (api, _):
        assert (await api.http.get("/.well-known/agent-card.json")).status_code == 404
        assert (await api.http.post("/a2a/stage", json={})).status_code == 404


WRONG = {  # the body, the code of JSON-RPC
    "no JSON": (b"{", -32700), "a batch": ([], -32600), "no version": ({"method": "GetTask"}, -32600),
    "an id that is none": ({"jsonrpc": "2.0", "id": {}, "method": "GetTask"}, -32600),
    "an unknown method": ({"jsonrpc": "2.0", "id": 1, "method": "message/send"}, -32601),
    "parameters that are none": ({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": []}, -32602),
    "no id of a task": ({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}}, -32602),
    "an odd id": ({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "../\u0000'; --"}}, -32001),
    "a long id": ({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x" * 100_000}}, -32001),
    "deep JSON": (b'{"a":' * 50_000, -32700), "half a character": (b'{"id": "\\ud800"}', -32700),
}  # fmt: skip


async def test_requests_that_are_wrong_are_told_so(redis_url):
    async with open_gateway(redis_url, a2a=[STAGE], limits=Limits(body_bytes=300_000)) as (api, _):
        for name, (body, code) in WRONG.items():
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            found = await api.http.post("/a2a/stage", content=content, headers=SPOKEN)
            assert (found.status_code, found.json()["error"]["code"]) == (200, code), name
        for version, right in (
            ("", False),
            ("0.3", False),
            ("99.0", False),
            ("x", False),
            ("1", True),
            ("1.7", True),
        ):
            found = await api.http.get("/a2a/stage/tasks", headers={"a2a-version": version})
            assert (found.status_code == 200) is right, version
            if not right:
                assert found.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"
        plain_text = await api.http.post(
            "/a2a/stage/message:send", content=b"{}", headers={**SPOKEN, "content-type": "text/plain"}
        )
        assert plain_text.json()["error"]["details"][0]["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"
        huge = await api.http.post("/a2a/stage/message:send", content=b" " * 400_000, headers=SPOKEN)
        assert (huge.status_code, huge.json()["error"]["code"]) == (413, 413)
        for path in ("/a2a/stage/tasks/x:fly", "/a2a/stage/tasks/x", "/a2a/stage/none"):
            found = await api.http.get(path, headers=SPOKEN)
            assert (found.status_code, found.json()["error"]["code"]) == (404, 404), path


MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hello"}]}
PARAMS, CONTENT = "INVALID_PARAMS", "CONTENT_TYPE_NOT_SUPPORTED"
WRONG_MESSAGES = {  # fields of the message, the reason
    "an unknown role": ({"role": "user"}, PARAMS),
    "the agent's role": ({"role": "ROLE_AGENT"}, PARAMS),
    "no parts": ({"parts": []}, PARAMS),
    "a part of an unknown kind": ({"parts": [{"video": "x"}]}, PARAMS),
    "no id": ({"messageId": ""}, PARAMS),
    "a long id": ({"messageId": "m" * 501}, PARAMS),
    "raw that is empty": ({"parts": [{"raw": "§", "mediaType": "image/png"}]}, "INVALID_MESSAGE"),
    "a type that it does not take": ({"parts": [{"raw": "aGk=", "mediaType": "video/mp4"}]}, CONTENT),
    "an empty text": ({"parts": [{"text": "  "}]}, "INVALID_MESSAGE"),
    "an odd context": ({"contextId": "a\nb"}, "INVALID_ID"),
    "a long context": ({"contextId": "c" * 201}, "INVALID_ID"),
    "a local file": (
        {"parts": [{"url": "file:///etc/passwd", "mediaType": "text/plain"}]},
        "INVALID_MESSAGE",
    ),
    "an unknown task": ({"taskId": "none"}, "TASK_NOT_FOUND"),
    "a number beyond all numbers": ({"parts": [{"data": 10**400}]}, PARAMS),
    "metadata beyond all numbers": ({"metadata": {"a": 10**400}}, PARAMS),
}


async def test_messages_that_are_wrong_begin_no_task(redis_url):
    async with open_gateway(redis_url, a2a=[STAGE]) as (api, _):
        for name, (fields, reason) in WRONG_MESSAGES.items():
            body = {"message": {**MESSAGE, **fields}}
            found = await api.http.post("/a2a/stage/message:send", json=body, headers=SPOKEN)
            assert found.status_code in (400, 404), name
            assert found.json()["error"]["details"][0]["reason"] == reason, name
        assert not (await api.get("/sessions"))["sessions"]


async def test_metadata_and_arguments_of_any_shape_break_no_task(redis_url):
    deep: dict = {}
    for _ in range(40):
        deep = {"a": deep}

    @tool(approval=True)
    def keep(tree: dict) -> str:
        """Keep."""
        return "kept"

    call = tool_call("keep", tree=deep | {"large": 10**400})
    app = App([Agent(script(call, repeat=True), "any", name="keeper", tools=[keep])])
    odd = [
        "x",
        {"metadata": {"large": 10**400}},
        {"metadata": 5},
        {"messageId": 5},
        {"metadata": deep | {"b": [deep] * 3}},
    ]
    async with (
        running_worker(redis_url, app), open_gateway(redis_url, a2a=[A2AAgent("keeper")]) as (api, _),
        a2a_client(f"{api.url}/a2a/keeper") as client,
    ):  # fmt: skip
        turns = [
            await api.submit(f"s{number}", "Go.", agent="keeper", metadata={"a2a": one})
            for number, one in enumerate(odd)
        ]
        for turn in turns:

            async def waits(turn: str = turn) -> bool:
                return (await api.get(f"/turns/{turn}"))["status"] == "suspended"

            await wait_until_async(waits, 20)
            task = await client.get_task(pb.GetTaskRequest(id=turn))
            assert task.status.state == pb.TASK_STATE_INPUT_REQUIRED
            assert task.status.message.parts[0].text.startswith("May keep run")
        assert {one.id for one in (await client.list_tasks(pb.ListTasksRequest())).tasks} == {*turns}
        for turn in turns:
            await client.cancel_task(pb.CancelTaskRequest(id=turn))


@pytest.mark.parametrize("path", ["", "/message:send"])
@pytest.mark.parametrize("value", ['{"text":"a"}', "{}", '{"data":[[],{}]}'])
async def test_a_message_of_very_many_values_is_refused_before_they_are_read(redis_url, path, value):
    """The package of the protocol would take minutes, and nobody else would be served in the meantime."""
    parts = ",".join([value] * 200_000)
    body = f'{{"message":{{"messageId":"m","role":"ROLE_USER","parts":[{parts}]}}}}'
    if not path:
        body = f'{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{body}}}'
    async with open_gateway(redis_url, a2a=[STAGE]) as (api, _):
        found = await asyncio.wait_for(
            api.http.post(f"/a2a/stage{path}", content=body, headers=SPOKEN), timeout=patience(5)
        )
        assert "exceeds the limit a2a_values" in found.json()["error"]["message"]


async def test_a_message_that_decides_a_call_twice_decides_nothing(redis_url):
    payer = Agent(script(tool_call("pay", amount=1), "Paid."), "any", name="payer", tools=[pay])
    async with (
        running_worker(redis_url, App([payer])), open_gateway(redis_url, a2a=[A2AAgent("payer")]) as (api, _),
        a2a_client(f"{api.url}/a2a/payer") as client,
    ):  # fmt: skip
        task = await sent(client, said("Go."))
        [call] = plain(task.status.message.parts[1].data)["calls"]
        both = [{"callId": call["callId"], "approved": one} for one in (False, True)]
        for parts in ([data_part({"decisions": both})], [data_part({"decisions": [one]}) for one in both]):
            with pytest.raises(InvalidParamsError, match="is decided twice"):
                await sent(client, said(parts=parts, task_id=task.id))
        assert not (await api.get(f"/turns/{task.id}")).get("decisions")
        assert answer(await sent(client, said("approve", task_id=task.id))) == "Paid."


async def test_an_agent_of_texts_takes_answers_as_data_and_no_files_of_an_unknown_type(redis_url):
    agent = A2AAgent("payer", input_modes=["text/plain"])
    payer = Agent(script(tool_call("pay", amount=1), "Paid."), "any", name="payer", tools=[pay])
    async with (
        running_worker(redis_url, App([payer])), open_gateway(redis_url, a2a=[agent]) as (api, _),
        a2a_client(f"{api.url}/a2a/payer") as client,
    ):  # fmt: skip
        for part in (pb.Part(raw=b"x"), pb.Part(url="https://example.com/a"), data_part({"a": 1})):
            with pytest.raises(ContentTypeNotSupportedError):
                await sent(client, said(parts=[part]))
        task = await sent(client, said("Go."))
        with pytest.raises(ContentTypeNotSupportedError):
            await sent(client, said(parts=[pb.Part(raw=b"x")], task_id=task.id))
        assert (
            answer(await sent(client, said(parts=[data_part({"approved": True})], task_id=task.id)))
            == "Paid."
        )


class SomeEvents(Access):
    """Lets everybody in, and shows them the ends of turns alone."""

    async def caller(self, request, *, stream):
        return Caller(name="few", tenant="acme", events=frozenset({"turn_finished"}))


async def test_a_caller_of_some_events_sees_no_updates_of_others(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE], access=SomeEvents()) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage", streaming=True) as client,
    ):
        seen = await followed(client.send_message(said("words:3")))
        assert seen.states == ["TASK_STATE_SUBMITTED", "TASK_STATE_COMPLETED"]
        assert (seen.pieces, seen.text[:15]) == (1, FIRST_WORDS[:15])


class EndedSession(Access):
    """Lets everybody in with a token of a session that has ended."""

    async def caller(self, request, *, stream):
        return Caller(name="late", tenant="acme", session="c", life="an earlier one")


async def test_a_token_of_a_session_that_has_ended_lists_no_tasks(redis_url):
    async with open_gateway(redis_url, a2a=[STAGE], access=EndedSession()) as (api, _):
        for query in ("", "?contextId=c"):
            found = await api.http.get(f"/a2a/stage/tasks{query}", headers=SPOKEN)
            assert found.status_code == 401, query


async def test_what_a_client_does_not_know_yet_is_ignored(redis_url, tmp_path):
    async with stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _):
        body = {"message": {**MESSAGE, "later": 1}, "more": {"a": [1]}}
        found = await api.http.post("/a2a/stage/message:send", json=body, headers=SPOKEN)
        assert found.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert found.headers["content-type"] == "application/a2a+json"
        refused = await api.http.get("/a2a/stage/extendedAgentCard", headers=SPOKEN)
        assert refused.status_code == 400
        assert refused.json()["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"


async def test_a_draining_gateway_sends_blocked_callers_to_another(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (ensemble, api, app),
        open_gateway(redis_url, a2a=[STAGE]) as (other, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
        a2a_client(f"{other.url}/a2a/stage") as elsewhere,
    ):
        asked = said("gate:g")
        blocked = asyncio.create_task(sent(client, asked))
        await ensemble.waits("g")
        app.drain()
        with pytest.raises(A2AClientError, match="503"):
            await blocked
        asked.configuration.return_immediately = True
        again = await sent(elsewhere, asked)
        ensemble.stage.open("g")
        assert (await other.result(again.id))["status"] == "finished"
        assert len((await other.get("/sessions"))["sessions"]) == 1


async def test_the_official_client_for_javascript_talks_approves_lists_and_cancels(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        running("a2a.mjs", api.url, "talk") as program,
    ):
        for binding in BINDINGS:
            found = await program.said()
            assert found["binding"] == binding
            assert found["answer"].startswith(FIRST_WORDS)
            assert (found["asked"], found["done"]) == ("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED")
            assert found["listed"] == found["ids"]
            assert found["refused"] == "TaskNotCancelableError"


async def test_the_official_client_for_javascript_takes_up_a_stream_at_another_gateway(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (ensemble, api, _),
        open_gateway(redis_url, a2a=[STAGE]) as (other, _),
        running("a2a.mjs", api.url, "resume", other.url) as program,
    ):
        first = await program.said()
        assert first["text"] == FIRST_WORDS
        program.go_on()
        assert await program.said() == "resumed"
        ensemble.stage.open("g")
        found = await program.said()
        turn = await api.get(f"/turns/{first['id']}")
        assert found["states"][-1] == "TASK_STATE_COMPLETED"
        assert found["text"] == turn["messages"][-1]["parts"][0]["text"]


async def test_lists_leave_out_what_cannot_be_read(redis_url, tmp_path, redis):
    async with (
        stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _),
        a2a_client(f"{api.url}/a2a/stage") as client,
    ):
        first = await sent(client, said("Hello"))
        damaged = await sent(client, said("And now?", context_id=first.context_id))
        redis.hset(f"ant:turn:{damaged.id}", "request", "{")
        for context in ("", first.context_id):
            listed = await client.list_tasks(pb.ListTasksRequest(context_id=context))
            assert [one.id for one in listed.tasks] == [first.id]
        turns = (await api.get(f"/sessions/{first.context_id}/turns"))["turns"]
        assert [one["turn_id"] for one in turns] == [first.id]


@pytest.mark.parametrize("status", ["completed", "TASK_STATE_DONE", 99])
async def test_a_status_that_no_task_has_is_refused(redis_url, tmp_path, status):
    """The protocol's package drops values that it does not know: all tasks would be listed."""
    async with stand(redis_url, tmp_path, a2a=[STAGE]) as (_, api, _):
        headers = {"a2a-version": "1.0"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"status": status}}
        found = (await api.http.post("/a2a/stage", json=body, headers=headers)).json()
        assert found["error"]["code"] == -32602
        assert "status must be" in found["error"]["message"]
        answer = await api.http.get("/a2a/stage/tasks", params={"status": status}, headers=headers)
        assert answer.status_code == 400
        for right in ("TASK_STATE_COMPLETED", ""):
            assert (
                await api.http.get("/a2a/stage/tasks", params={"status": right}, headers=headers)
            ).is_success
