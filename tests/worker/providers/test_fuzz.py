"""Whatever a service sends ends in a result or in a provider error: never in another exception, never in a hang."""

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.services.conversation import (
    KINDS,
    answer,
    body,
    chat,
    message_events,
    message_item,
    response_events,
    text_block,
)

from antiphon.errors import ProviderError
from antiphon_worker.providers.anthropic.stream import AnthropicDecoder
from antiphon_worker.providers.base import Increment, StepResult
from antiphon_worker.providers.http.connection import Answer, Call, Connection, Options
from antiphon_worker.providers.openai_chat.stream import ChatDecoder
from antiphon_worker.providers.openai_responses.stream import ResponsesDecoder
from antiphon_worker.providers.stream.increments import AnswerStream

DECODERS: dict[str, Any] = {
    "openai-chat": ChatDecoder,
    "anthropic": AnthropicDecoder,
    "openai": ResponsesDecoder,
}
SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class Given:
    """A response that a test made up, in place of one from the network."""

    source = None
    header = Answer.header

    def __init__(self, chunks: list[bytes], content_type: str) -> None:
        self.headers = ((b"content-type", content_type.encode()),)
        self._chunks = iter(chunks)

    async def into(self, take: Callable[[bytes], bool]) -> bool:
        return all(take(chunk) for chunk in self._chunks)

    async def aclose(self) -> None:
        return None


class Line(Connection):
    """A connection that opens such a response."""

    request_id_header = b"x-request-id"

    def __init__(self, given: Given) -> None:
        super().__init__(Options(max_event_bytes=100_000, max_answer_bytes=1_000_000))
        self._given = given

    async def open(self, provider: str, call: Call) -> Any:
        return self._given

    make_client = None  # type: ignore[assignment]


def outcome(
    kind: str, chunks: list[bytes], content_type: str = "text/event-stream"
) -> StepResult | ProviderError:
    """What an answer comes to; what was heard on the way must be there in the end."""

    async def listen() -> StepResult | ProviderError:
        line = Line(Given(chunks, content_type))
        heard: list[Increment] = []
        try:
            async for increment in AnswerStream(line, kind, Call("/", b""), DECODERS[kind](kind, "m")):
                heard.append(increment)  # noqa: PERF401 - what came before an error counts as well
        except ProviderError as error:
            assert not any(isinstance(increment, StepResult) for increment in heard)
            return error
        assert isinstance(heard[-1], StepResult)
        for increment in heard[:-1]:
            json.dumps(getattr(increment, "text", "")).encode()
            assert getattr(increment, "text", "").encode() is not None
        assert heard[-1].message.to_json()
        return heard[-1]

    return asyncio.run(listen())


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


WORDS = """
    text content delta index type tool_calls function arguments name id choices message usage error output item
    summary thinking input content_block annotations message_start content_block_delta response.completed
    response.output_item.done tool_use reasoning
"""
words = st.sampled_from(WORDS.split())
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | words | st.just("\ud83c")
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


def rich(kind: str) -> list[Any]:
    """Events with something of everything in them."""
    if kind == "openai-chat":
        call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}
        deltas = [
            {"reasoning": "h"},
            {"content": "Hi"},
            {"tool_calls": [call]},
            {"annotations": [{"type": "c"}]},
        ]
        return chat(
            *deltas,
            {"refusal": "no"},
            {"audio": {"id": "x"}},
            usage={"prompt_tokens": 1, "prompt_tokens_details": {}},
        )
    if kind == "anthropic":
        use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
        arguments = [{"type": "input_json_delta", "partial_json": '{"x":1}'}]
        thought = (
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": "h"}],
        )
        return message_events(
            text_block("Hi"), (use, arguments), thought, ({"type": "server_tool_use"}, arguments)
        )
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    thought = {"type": "reasoning", "summary": [{"text": "h"}]}
    return response_events(message_item("Hi"), (call, []), (thought, []), ({"type": "web_search_call"}, []))


def mutate(events: list[Any], path: list[int], value: Any) -> list[Any]:
    """The same events with one value, somewhere in them, replaced."""
    events = json.loads(json.dumps(events))
    place: Any = events
    for step in path:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[step % len(keys)]
        if not isinstance(place[key], dict | list) or not place[key] or step == path[-1]:
            place[key] = value
            break
        place = place[key]
    return events


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(data=st.binary(max_size=300), whole=st.booleans(), cuts=st.lists(st.integers(0, 300), max_size=4))
@example(data=b"data: {}\n\n", whole=False, cuts=[])
@example(data=b'{"output": [7], "choices": [7], "content": [7]}', whole=True, cuts=[])
def test_any_bytes_end_in_a_result_or_a_provider_error(kind, data, whole, cuts):
    outcome(kind, cut(data, cuts), "application/json" if whole else "text/event-stream")


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(events=st.lists(values, max_size=6), cuts=st.lists(st.integers(0, 2000), max_size=4))
def test_any_json_ends_in_a_result_or_a_provider_error(kind, events, cuts):
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    outcome(kind, cut(data, cuts))
    for event in events[:1]:
        outcome(kind, [json.dumps(event).encode()], "application/json")


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(path=st.lists(st.integers(0, 40), min_size=1, max_size=8), value=values)
def test_one_odd_value_anywhere_ends_in_a_result_or_a_provider_error(kind, path, value):
    events = mutate(rich(kind), path, value)
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    outcome(kind, [b"".join(lines)])
    whole = events[-1].get("response") if isinstance(events[-1], dict) else None
    outcome(kind, [json.dumps(whole or events[0]).encode()], "application/json")


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(
    edits=st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=3), st.integers(0, 5)), max_size=4),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
)
def test_any_damage_to_an_answer_ends_in_a_result_or_a_provider_error(kind, edits, cuts):
    data = body(kind, rich(kind))
    for place, new, size in edits:
        place %= len(data)
        data = data[:place] + new + data[place + size :]
    outcome(kind, cut(data, cuts))


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(cuts=st.lists(st.integers(0, 3000), max_size=10), text=st.text(max_size=20))
def test_no_cut_between_chunks_changes_an_answer(kind, cuts, text):
    data = body(kind, answer(kind, "a", text, "z"))
    heard = outcome(kind, cut(data, cuts))
    assert isinstance(heard, StepResult)
    assert heard.message.text == f"a{text}z"
