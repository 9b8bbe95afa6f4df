"""AG-UI: by the types of ``ag-ui-protocol``, and by the official ``@ag-ui/client``, which ``make clients`` installs."""

import json

import pytest
from ag_ui.core import Event as AnyEvent
from ag_ui.core import types as shapes
from pydantic import TypeAdapter
from support.clients import running
from support.gateway import open_gateway, stand
from support.stage import FIRST_WORDS

from antiphon.events import (
    CustomEvent,
    ReasoningDelta,
    StepFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallEvent,
    ToolResultEvent,
    TurnFailedEvent,
    TurnFinished,
    TurnRetrying,
    TurnStarted,
)
from antiphon.model import Response
from antiphon_gateway.frontends.ag_ui_events import RunEvents

pytestmark = pytest.mark.one_server


def converted(*events, before=(), continues=False):
    """The events of a run as a client reads them, each checked by the protocol's own type."""
    run = RunEvents("s", "r", "t", before, continues=continues)
    found = run.start()
    for seq, event in enumerate(events, 1):
        event.seq = seq
        found += run.of(event)
    return [TypeAdapter(AnyEvent).validate_json(one.model_dump_json(by_alias=True)) for one in found]


def names(events) -> list[str]:
    return [event.type.value for event in events]


QUESTION = shapes.UserMessage(id="m1", content="Hi")


def test_everything_that_is_opened_is_closed_before_the_run_ends():
    events = converted(
        TurnStarted(), ReasoningDelta(text="hm"), TextDelta(text="a"), ToolCallDelta(call_id="c", name="n"),
        ToolCallDelta(call_id="c", arguments="{}"), ToolCallEvent(call_id="c", name="n"), StepFinished(),
        ToolResultEvent(call_id="c", name="n", result="r"), CustomEvent(name="x", data=1), TextDelta(text="z"),
        TurnFinished(response=Response()),
    )  # fmt: skip
    assert names(events) == [
        "RUN_STARTED", "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END", "REASONING_END", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT", "CUSTOM",
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip
    assert names(converted(TextDelta(text="a"), TurnFailedEvent(code="c", message="no")))[-2:] == [
        "TEXT_MESSAGE_END", "RUN_ERROR",
    ]  # fmt: skip


def test_a_model_call_that_begins_again_leaves_the_messages_that_count():
    events = converted(
        ToolCallEvent(call_id="c", name="n"), StepFinished(), ToolResultEvent(call_id="c", name="n", result="r"),
        ReasoningDelta(text="hm"), TextDelta(text="a"), TurnRetrying(), TextDelta(text="b"), TurnFinished(),
        before=[QUESTION],
    )  # fmt: skip
    (snapshot,) = [event for event in events if event.type.value == "MESSAGES_SNAPSHOT"]
    assert [message.role for message in snapshot.messages] == ["user", "assistant", "tool"]
    at = events.index(snapshot)
    assert names(events)[at - 1 :] == [
        "TEXT_MESSAGE_END", "MESSAGES_SNAPSHOT", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]  # fmt: skip
    ids = [event.message_id for event in events if event.type.value == "TEXT_MESSAGE_START"]
    assert len(set(ids)) == 2


def test_a_client_that_has_a_part_of_the_answer_is_told_to_forget_it():
    part = shapes.AssistantMessage(id="t.3", content="half")
    events = converted(TextDelta(text="whole"), TurnFinished(), before=[QUESTION, part])
    assert events[1].messages == [QUESTION]
    assert len(converted(TurnFinished(), before=[QUESTION, part], continues=True)) == 2


def body(text: str, **more) -> dict:
    return {
        "threadId": "s",
        "runId": "r",
        "messages": [{"id": "m1", "role": "user", "content": text}],
        **more,
    }


async def test_what_is_no_run_is_refused(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        for wrong in (
            {**body("x"), "messages": []}, {"threadId": "s"}, body("x", resume=[{"interruptId": "c", "status": "x"}]),
            {**body("x"), "messages": [{"id": "r1", "role": "tool", "toolCallId": "c", "content": "x"}]},
            {**body("x"), "messages": [{"id": "m", "role": "user", "content": [{"type": "audio"}]}]},
        ):  # fmt: skip
            answer = await api.http.post("/ag-ui/stage", json=wrong)
            assert answer.status_code in (400, 409), answer.text
        answer = await api.http.post("/ag-ui/nobody", json=body("x"))
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        assert [event["type"] for event in events] == ["RUN_STARTED", "RUN_ERROR"]
        assert events[1]["code"] == "unknown_agent"


async def test_what_a_client_sends_along_stays_with_the_turn(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        context = [{"description": "page", "value": "/cart"}]
        await api.http.post(
            "/ag-ui/stage", json=body("x", context=context, state={"a": 1}, forwardedProps={})
        )
        (turn,) = (await api.get("/sessions/s/turns"))["turns"]
        assert turn["metadata"] == {"ag_ui": {"state": {"a": 1}, "context": context}}
        assert (turn["agent"], turn["key"]) == ("stage", "ag-ui:m1")


def said(found) -> list[str]:
    return [message.get("content") for message in found["messages"] if message["role"] == "assistant"]


@pytest.mark.main_path
async def test_the_official_client_gets_the_whole_answer_from_any_gateway(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path) as (ensemble, api, _),
        open_gateway(redis_url) as (other, _),
        running("ag_ui.mjs", api.url, "resume", other.url) as program,
    ):
        await ensemble.waits("g")
        program.go_on()
        assert await program.said() == "resumed"
        ensemble.stage.open("g")
        runs = await program.said()
        history = (await api.get("/sessions/s/messages"))["messages"]
        for found in runs:
            assert "failed" not in found
            assert said(found) == [history[1]["parts"][0]["text"]]
            assert found["outcome"]["type"] == "success"
        assert len(history) == 2


async def test_the_official_client_takes_back_what_a_failed_model_call_said(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _), running("ag_ui.mjs", api.url, "retry") as program:
        found = await program.said()
        assert "failed" not in found
        assert found["events"].count("MESSAGES_SNAPSHOT") == 1
        assert said(found) == [(await api.get("/sessions/r/messages"))["messages"][-1]["parts"][0]["text"]]


async def test_the_official_client_hears_of_errors_and_stops(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        async with running("ag_ui.mjs", api.url, "fail") as program:
            found = await program.said()
            assert (found["failed"]["code"], found["events"][-1]) == ("provider_rejected", "RUN_ERROR")
        async with running("ag_ui.mjs", api.url, "stop") as program:
            await ensemble.waits("never")
            program.go_on()
            found = await program.said()
            assert found["outcome"] == {"type": "cancelled"}
            assert said(found) == [FIRST_WORDS]


async def test_the_official_client_answers_interrupts(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path) as (ensemble, api, _),
        running("ag_ui.mjs", api.url, "approve") as program,
    ):
        found = await program.said()
        for one in found.values():
            (interrupt,) = one["asked"]["outcome"]["interrupts"]
            assert interrupt["metadata"]["name"] == "guarded"
            assert "failed" not in one["done"]
            roles = [message["role"] for message in one["done"]["messages"]]
            assert roles == ["user", "assistant", "tool", "assistant"]
            assert one["done"]["outcome"]["type"] == "success"
        assert len(ensemble.stage.notes("tool", tool="guarded")) == 1
        assert "Too much." in found["false"]["done"]["messages"][2]["content"]


async def test_the_official_client_runs_its_own_tools(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _), running("ag_ui.mjs", api.url, "tools") as program:
        found = await program.said()
        assert "failed" not in found["done"]
        history = (await api.get("/sessions/t/messages"))["messages"]
        roles = [message["role"] for message in history]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        assert history[2]["parts"][0]["content"] == "a tree"
        roles = [message["role"] for message in found["done"]["messages"]]
        assert roles.count("tool") == 2
        assert said(found["done"])[-1] == history[-1]["parts"][0]["text"]
