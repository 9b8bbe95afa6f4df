"""What a service has seen of a session stays as it was: byte for byte, over fifty turns, for each service."""

import itertools
import json

import pytest
from prompt_caches import (
    BUILD,
    CACHES,
    SYSTEM,
    Recorder,
    blocks_of,
    common,
    lend,
    look,
    session_of,
    share,
    ten_turns,
)  # fmt: skip

from antiphon import Agent
from antiphon.model import Message, ToolCall, Usage
from antiphon.window import Summary
from antiphon_worker.providers.base import ModelRequest, StepResult
from antiphon_worker.providers.openai_chat.provider import OpenAIChat, chat_call
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses, responses_call

SERVICES = sorted(CACHES)
MESSAGES = ("messages", "input", "max_tokens", "max_output_tokens")
PUBLISHED = {"anthropic": 0.82, "openai": 0.81, "openai-chat": 0.82}


def asks_for_summary(body):
    return "Write a summary of our conversation" in blocks_of(body)[-1]


def head_of(body):
    """How many blocks stand before the messages."""
    messages = {**body, "messages": [], "input": []}
    return len(blocks_of(messages))


def fifty_turns(session, recorder):
    """Play fifty turns, and return the places in the requests where an edit took something back."""
    edits = set()
    for turn in range(50):
        text = f"Look {turn % 4 + 1} pages for {turn}" if turn % 3 else f"What about the book {turn}?"
        if turn % 11 == 7:
            edits.add(len(recorder.bodies))
            session.regenerate().result(20)
        elif turn % 11 == 9:
            edits.add(len(recorder.bodies))
            asked = [message for message in session.messages if message.role == "user"]
            session.edit(asked[-1].id, text).result(20)
        elif turn % 17 == 16:
            edits.add(len(recorder.bodies))
            session.rewind(to=session.messages[-2].id if turn % 3 == 0 else session.messages[-4].id)
            session.run(text)
        else:
            session.run(text)
    return edits


@pytest.mark.parametrize("service", SERVICES)
def test_fifty_turns_change_nothing_of_what_the_service_has_seen(service):
    recorder, session = session_of(service, window=Summary(turns=12))
    edits = fifty_turns(session, recorder)
    bodies = recorder.bodies
    summaries = [n for n, body in enumerate(bodies) if asks_for_summary(body)]
    assert len(summaries) >= 3
    assert len(edits) >= 8
    first = bodies[0]
    for body in bodies:
        settings = {name: value for name, value in body.items() if name not in MESSAGES}
        assert settings == {name: value for name, value in first.items() if name not in MESSAGES}
    for n, (before, after) in enumerate(itertools.pairwise(bodies), 1):
        one, other = blocks_of(before), blocks_of(after)
        if n in summaries:
            seen = common(one, other)
            assert seen >= len(other) - 1, "all but the request for the summary has been sent before"
        elif n - 1 in summaries:
            assert common(one, other) >= head_of(after)
        elif n in edits:
            assert common(one, other) > head_of(after)
        else:
            assert other[: len(one)] == one, f"request {n} of {len(bodies)}"


@pytest.mark.parametrize("service", SERVICES)
def test_the_published_share_of_ten_turns_is_read_from_the_cache(service):
    assert share(service, ten_turns(service)) == pytest.approx(PUBLISHED[service], abs=0.005)


@pytest.mark.parametrize("build", ["openai", "openai-chat"])
def test_openai_is_told_which_calls_begin_alike(build):
    def body_of(params, *, routed=True):
        request = ModelRequest("m", [], params=params, cache_key="k")
        if build == "openai":
            return responses_call(request, "openai", routed=routed).body
        return chat_call(
            request, "openai-chat", limit_name="max_tokens", include_usage=False, routed=routed
        ).body

    assert b'"prompt_cache_key":"8254c329a92850f6d539dd376f4816ee"' in body_of({})  # the start of a hash of k
    assert b'"prompt_cache_key":"mine"' in body_of({"prompt_cache_key": "mine"})
    assert b"prompt_cache" not in body_of({"prompt_cache": False})
    assert b"prompt_cache" not in body_of({}, routed=False)


@pytest.mark.parametrize("kind", [OpenAIResponses, OpenAIChat])
def test_only_openai_itself_is_sent_a_key_of_the_cache(kind, monkeypatch):
    def key_in(**options):
        stream = kind(**options).stream(ModelRequest("m", [], cache_key="k"))
        return b"prompt_cache_key" in stream._call.body

    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert key_in()
    assert key_in(base_url="https://mine.openai.azure.com/openai/v1")
    assert not key_in(base_url="https://api.groq.com/openai/v1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    assert not key_in()


class Desk(Recorder):
    """Hands every fifth turn over to the desk, which looks things up and answers."""

    async def stream(self, request):
        last = request.messages[-1]
        over = last.text.startswith("Over") and any(tool.name == "transfer_to_desk" for tool in request.tools)
        if not over:
            async for increment in super().stream(request):
                yield increment
            return
        self.bodies.append(json.loads(BUILD[self.name](request)))
        call = ToolCall(f"call_{len(self.bodies)}", "transfer_to_desk", {})
        message = Message("assistant", [call], provider=self.name)
        yield StepResult(message, Usage(1_000, 100), "tool_use", None, request.model)


@pytest.mark.parametrize("service", SERVICES)
def test_fifty_turns_with_hand_offs_change_nothing_of_what_each_agent_has_seen(service):
    recorder = Desk(service)
    shared = {"provider": recorder, "model": "m", "tools": [look, lend], "max_tokens": 20_000}
    desk = Agent(name="desk", system="You are the desk. " * 170, **shared)
    session = Agent(name="front", system=SYSTEM, handoffs=[desk], **shared).session()
    for turn in range(50):
        session.run(f"Over to the desk {turn}" if turn % 5 == 4 else f"Look {turn % 3 + 1} pages for {turn}")
    seen = {}
    for body in recorder.bodies:
        blocks, head = blocks_of(body), head_of(body)
        agent = tuple(blocks[:head])
        before = seen.get(agent)
        assert before is None or blocks[: len(before)] == before
        seen[agent] = blocks
    assert len(seen) == 2
    asked = [len(blocks) for blocks in seen.values()]
    assert min(asked) > 50
