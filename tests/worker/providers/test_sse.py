"""Events come out of bytes the same, however the network cut them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
