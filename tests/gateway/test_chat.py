"""The AI SDK's chat: its stream, resuming it from another gateway, and the official client where it is installed."""

import json
from base64 import b64encode
from contextlib import asynccontextmanager

import pytest
from support.gateway import keys, open_gateway
from support.gateway import stand as gateway_with_worker

from antiphon.errors import user_message
from antiphon.events import (
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
from antiphon.model import Message, Response, Text, ToolCall, ToolResult
from antiphon_gateway import Access
from antiphon_gateway.frontends.ai_sdk import UiStream, ui_messages

pytestmark = pytest.mark.one_server


def test_everything_that_is_opened_is_closed_and_a_retry_is_told():
    stream = UiStream("t")
    events = [
        TurnStarted(), ReasoningDelta(text="hm"), TextDelta(text="a"), TurnRetrying(reason="broken"),
        TextDelta(text="b"), ToolCallDelta(call_id="c", name="n", arguments="{}"),
        ToolCallEvent(call_id="c", name="n"), StepFinished(), ToolResultEvent(call_id="c", name="n", result="r"),
        TextDelta(text="z"), StepFinished(), TurnFinished(response=Response(stop_reason="max_tokens")),
    ]  # fmt: skip
    parts = [part for event in events for part in stream.of(event)]
    assert [part["type"] for part in parts] == [
        "start", "start-step", "reasoning-start", "reasoning-delta", "reasoning-end", "text-start", "text-delta",
        "reset-step", "text-start", "text-delta", "text-end",
        "tool-input-start", "tool-input-delta", "tool-input-available", "finish-step", "tool-output-available",
        "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish",
    ]  # fmt: skip
    assert parts[0] == {"type": "start", "messageId": "t"}
    assert parts[-1] == {"type": "finish", "finishReason": "length"}
    failed = TurnFailedEvent(code="provider_silent", message="no")
    assert UiStream("t").of(failed)[-1] == {"type": "error", "errorText": user_message("provider_silent")}


def test_a_history_is_one_message_for_each_turn():
    call = ToolCall("c", "n", {"a": 1})
    history = [
        Message("user", [Text("Hi")], turn_id="t", id="t.1"), Message("assistant", [call], turn_id="t", id="t.2"),
        Message("tool", [ToolResult("c", "r")], turn_id="t", id="t.3"),
        Message("assistant", [Text("Done")], turn_id="t", id="t.4"), Message("user", [Text("More")], turn_id="u"),
    ]  # fmt: skip
    user, answer, more = ui_messages(history)
    assert (user["id"], user["parts"]) == ("t.1", [{"type": "text", "text": "Hi", "state": "done"}])
    assert (answer["id"], [part["type"] for part in answer["parts"]]) == (
        "t", ["step-start", "dynamic-tool", "step-start", "text"],
    )  # fmt: skip
    assert answer["parts"][1]["output"] == "r"
    assert more["role"] == "user"


@asynccontextmanager
async def stand(redis_url, tmp_path):
    async with gateway_with_worker(redis_url, tmp_path) as (ensemble, api, _):
        await api.result(await api.submit("s", "one"))  # the session has its agent now
        yield ensemble, api


def said(text: str) -> list[dict]:
    """The parts of a response."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def body(text: str, name: str = "m1") -> dict:
    return {"id": "s", "messages": [{"id": name, "role": "user", "parts": [{"type": "text", "text": text}]}]}


async def opened(api, method: str, path: str, **more):
    """A response whose head has come, so that its request is known to be under way."""
    answer = await api.http.send(api.http.build_request(method, path, **more), stream=True)
    assert answer.status_code == 200
    return answer


async def test_a_picture_that_the_session_stores_apart_is_shown_to_the_page(redis_url, tmp_path):
    url = f"data:image/png;base64,{b64encode(bytes(30_000)).decode()}"
    picture = {"type": "file", "url": url, "mediaType": "image/png"}
    async with stand(redis_url, tmp_path) as (_, api):
        asked = body("What is this?", "m2")
        asked["messages"][0]["parts"].append(picture)
        said((await (await opened(api, "POST", "/chat", json=asked)).aread()).decode())
        shown = (await api.get("/chat/s/messages"))["messages"]
        assert shown[-2]["parts"][1] == picture
        assert [one["size"] for one in (await api.get("/sessions/s/files"))["files"]] == [30_000]


async def test_an_answer_is_started_resumed_and_stopped(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api), open_gateway(redis_url) as (other, _):
        assert (await api.http.get("/chat/s/stream")).status_code == 204
        first = await opened(api, "POST", "/chat", json=body("go gate:g"))
        resumed = await opened(other, "GET", "/chat/s/stream")
        again = await opened(other, "POST", "/chat", json=body("go gate:g"))
        shown = (await other.get("/chat/s/messages"))["messages"]
        assert [one["role"] for one in shown] == ["user", "assistant", "user"]
        ensemble.stage.open("g")
        answers = [said((await one.aread()).decode()) for one in (first, resumed, again)]
        assert answers[0] == answers[1] == answers[2]
        assert first.headers["x-vercel-ai-ui-message-stream"] == "v1"
        text = "".join(part["delta"] for part in answers[0] if part["type"] == "text-delta")
        last = (await api.get("/sessions/s/messages"))["messages"][-1]
        assert text == last["parts"][0]["text"]
        stopped = await opened(api, "POST", "/chat", json=body("go gate:never", "m2"))
        await ensemble.waits("never")
        await api.post("/chat/s/stop", status=204)
        assert said((await stopped.aread()).decode())[-1] == {
            "type": "abort",
            "reason": "stopped by the user",
        }
        ensemble.stage.open("never")
        again = await api.http.post("/chat", json={"id": "s", "trigger": "regenerate-message"})
        assert said(again.text)[0]["type"] == "start"


async def test_what_a_chat_cannot_send_is_refused(redis_url):
    async with open_gateway(redis_url) as (api, _):
        video = {"type": "source-url", "url": "https://example.com"}
        for wrong in (
            {"id": "s"}, {"id": "s", "trigger": "other"}, {**body("x"), "messageId": "m0"},
            {"id": "s", "messages": [{"role": "assistant", "parts": []}]},
            {"id": "s", "messages": [{"role": "user", "parts": [video]}]},
        ):  # fmt: skip
            await api.post("/chat", wrong, 400)


async def test_a_chat_of_another_tenant_is_refused(redis_url):
    known, secrets = keys(**{name: {"tenant": name, "sessions": ["s*"]} for name in "ab"})
    async with open_gateway(redis_url, access=Access(known)) as (api, _):
        a, b = ({"authorization": f"Bearer {secrets[name]}"} for name in "ab")
        await api.post("/sessions", {"session_id": "s"}, headers=a)
        for method, path in (
            ("POST", "/chat"),
            ("GET", "/chat/s/stream"),
            ("POST", "/chat/s/stop"),
            ("GET", "/chat/s/messages"),
        ):
            more = {"json": body("x")} if path == "/chat" else {}
            assert (await api.http.request(method, path, headers=b, **more)).status_code == 403, path
        assert (await api.http.post("/chat", headers=a, json={**body("x"), "id": "t"})).status_code == 403
