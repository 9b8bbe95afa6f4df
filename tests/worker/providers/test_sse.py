"""Events come out of bytes the same, however the network cut them."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import ProviderError
from antiphon_worker.providers.base import StepResult
from antiphon_worker.providers.openai_chat import stream as openai_chat_stream
from antiphon_worker.providers.openai_chat.stream import ChatDecoder, plain_text
from antiphon_worker.providers.stream.sse import EventSplitter, EventTooLong


def split(*chunks: bytes, limit: int = 10_000) -> list[tuple[bytes, bytes]]:
    splitter = EventSplitter(limit)
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return events + splitter.flush()


SAMPLES = {
    b"data: one\n\ndata: two\n\n": [(b"", b"one"), (b"", b"two")],
    b"event: a\ndata: 1\n\n": [(b"a", b"1")],
    b"data: 1\nevent: a\n\n": [(b"a", b"1")],
    b"data:no space\n\n": [(b"", b"no space")],
    b"data:  two spaces\n\n": [(b"", b" two spaces")],
    b"data: a\ndata: b\n\n": [(b"", b"a\nb")],
    b"data\n\n": [(b"", b"")],
    b": a comment\n\n: another\ndata: x\n\n": [(b"", b"x")],
    b"id: 7\nretry: 100\ndata: x\n\n": [(b"", b"x")],
    b" data: ignored for its space\n\ndata: x\n\n": [(b"", b"x")],
    b"event: nothing\n\ndata: x\n\n": [(b"", b"x")],
    b"data: a\r\n\r\ndata: b\r\n\r\n": [(b"", b"a"), (b"", b"b")],
    b"event: e\r\ndata: a\r\n\r\n": [(b"e", b"a")],
    b"data: a\r\rdata: b\r\r": [(b"", b"a"), (b"", b"b")],
    b"data: a\n\r\ndata: b\n\n": [(b"", b"a"), (b"", b"b")],
    b"\xef\xbb\xbfdata: after a BOM\n\n": [(b"", b"after a BOM")],
    b"\n\n\n\ndata: x\n\n\n\n\ndata: y\n\n": [(b"", b"x"), (b"", b"y")],
    "data: é – 🎶\n\n".encode(): [(b"", "é – 🎶".encode())],
    b"data: without its end": [(b"", b"without its end")],
    b"data: a\n\nevent: b\ndata: torn": [(b"", b"a"), (b"b", b"torn")],
    b"": [],
    b"\xef\xbb": [],
}


@pytest.mark.parametrize("body", SAMPLES, ids=repr)
def test_a_body_gives_its_events(body):
    assert split(body) == SAMPLES[body]


@pytest.mark.parametrize("body", SAMPLES, ids=repr)
def test_no_cut_changes_the_events(body):
    assert split(*(body[i : i + 1] for i in range(len(body)))) == SAMPLES[body]
    for cut in range(len(body)):
        assert split(body[:cut], body[cut:]) == SAMPLES[body]


def test_an_event_is_given_as_soon_as_its_blank_line_has_come():
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\n") == []
    assert splitter.feed(b"\n") == [(b"", b"a")]
    assert splitter.feed(b"data: b\r\n\r") == [(b"", b"b")]


def test_an_event_that_never_ends_is_given_up():
    splitter = EventSplitter(100)
    for _ in range(14):
        splitter.feed(b"data: x")
    with pytest.raises(EventTooLong, match="100 bytes"):
        splitter.feed(b"data: x")


lines = st.sampled_from([b"data: a", b"data: b", b"event: e", b": c", b"", b"data", b"nonsense", b" data: x"])
endings = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(lines, endings), max_size=20), st.lists(st.integers(0, 200), max_size=10))
def test_any_lines_with_any_endings_hold_at_any_cuts(body, cuts):
    data = b"".join(line + ending for line, ending in body)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(places)]
    assert split(*chunks) == split(data) == plainly(data)


def plainly(data: bytes) -> list[tuple[bytes, bytes]]:
    """The definition, line by line."""
    events, name, lines = [], b"", []
    text = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in [*text.split(b"\n"), b""]:
        field, _, value = line.partition(b":")
        if not line:
            events += [(name, b"\n".join(lines))] if lines else []
            name, lines = b"", []
        elif field == b"data":
            lines.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return events


FUNCTION = {"name": "look", "arguments": '{"a":'}
DELTAS: list[Any] = [
    {"content": "a word"},
    {"content": ""},
    {"role": "assistant", "content": "", "refusal": None},
    {"content": "said", "reasoning_content": "thought"},
    {"content": "said", "reasoning": {"content": "thought"}},
    {"content": None, "reasoning": "thought"},
    {"content": "half \ud83d"},
    {"content": "\ude00 and half"},
    {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "parts"}]},
    {"content": "said", "annotations": [{"type": "url_citation"}]},
    {"content": "said", "images": [{"type": "image_url"}]},
    {"content": "said", "audio": {"data": "AAAA"}},
    {"content": "said", "refusal": "no"},
    {"content": "said", "a vendor's": {"own": 1}},
    {"tool_calls": [{"index": 0, "id": "c", "function": FUNCTION}], "content": "said"},
    {"content": 7},
    {},
    None,
]
CHOICES = st.builds(
    lambda delta, more: {"index": 0, "delta": delta, **more},
    st.sampled_from(DELTAS),
    st.sampled_from(
        [{}, {"finish_reason": None, "logprobs": None}, {"finish_reason": "stop"}, {"finish_reason": "length"},
         {"index": 1}, {"usage": {"prompt_tokens": 3}}, {"error": {"message": "no"}},
         {"delta": None, "message": {"content": "x"}}]
    ),
)  # fmt: skip
CHUNKS = st.builds(
    lambda choices, more: {"id": "c", "model": "m-1", "object": "chat.completion.chunk", "choices": choices, **more},
    st.lists(CHOICES, min_size=1, max_size=2) | st.just([]),
    st.sampled_from(
        [{}, {}, {}, {"usage": {"prompt_tokens": 5, "completion_tokens": 7}},
         {"x_groq": {"usage": {"prompt_tokens": 9}}},
         {"error": {"message": "gone"}}, {"object": "error"}, {"object": ""}, {"id": None},
         {"model": None}, {"usage": None}]
    ),
)  # fmt: skip
EVENTS = st.tuples(
    st.sampled_from([b"", b"", b"", b"error"]), CHUNKS.map(lambda one: json.dumps(one).encode())
)


def heard(events: list[tuple[bytes, bytes]], tries: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that a decoder makes of these events, its result or its error at the end."""
    monkeypatch.setattr(openai_chat_stream, "PLAIN_TRIES", tries)
    monkeypatch.setattr(openai_chat_stream.uuid, "uuid4", lambda: type("Id", (), {"hex": "0" * 32}))
    decoder, out = ChatDecoder("p", "m"), []
    try:
        for name, data in events:
            decoder.event(name, data, out)
        decoder.finished = True
        result: StepResult | None = decoder.result(out)
    except (ProviderError, ValueError) as error:
        return [*out, type(error), str(error)]
    return [*out, result]


@settings(deadline=None, max_examples=1000)
@given(st.lists(EVENTS, max_size=12))
def test_both_ways_come_to_the_same(events):
    with pytest.MonkeyPatch.context() as patch:
        assert heard(events, 100, patch) == heard(events, 0, patch)


@pytest.mark.parametrize("delta", [delta for delta in DELTAS if delta])
def test_only_text_alone_is_read_the_short_way(delta):
    plain = set(delta) <= {"role", "content", "refusal"} and isinstance(delta.get("content"), str)
    plain = plain and not delta.get("refusal") and delta["content"].isascii()
    read = plain_text(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())
    assert read == (delta["content"] if plain else None)


def test_the_model_of_an_answer_is_the_one_that_its_first_chunk_with_one_names():
    opening = {"id": "", "model": "", "object": "", "choices": [], "prompt_filter_results": []}
    said = {"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "a"}}]}
    decoder, out = ChatDecoder("p", "m"), []
    for chunk in (opening, said, said):
        decoder.event(b"", json.dumps(chunk).encode(), out)
    decoder.finished = True
    result = decoder.result(out)
    assert (result.model, result.message.model, result.message.text) == ("m-1", "m-1", "aa")


def test_an_answer_whose_chunks_are_never_plain_is_soon_read_the_long_way_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(openai_chat_stream, "plain_text", asked.append)
    chunk = json.dumps(
        {"model": "m-1", "choices": [{"index": 0, "delta": {"content": "a", "own": 1}}]}
    ).encode()
    decoder, out = ChatDecoder("p", "m"), []
    for _ in range(50):
        decoder.event(b"", chunk, out)
    assert len(out) == 50
    assert len(asked) == openai_chat_stream.PLAIN_TRIES
