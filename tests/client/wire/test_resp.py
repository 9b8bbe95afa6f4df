"""What hiredis reads, plain Python reads as well, however the bytes are cut into pieces."""

import pytest
from redis.exceptions import InvalidResponse, ResponseError

from antiphon.wire.connection import resp
from antiphon.wire.connection.resp import NOTHING, PlainReader, reply_reader

WIRE = (
    b"+PONG\r\n:-7\r\n$5\r\nab\r\nc\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n"
    b"*4\r\n$1\r\na\r\n*2\r\n:1\r\n-ERR inner one\r\n$-1\r\n+\r\n-ERR the outer one\r\n"
)
REPLIES = [
    b"PONG", -7, b"ab\r\nc", b"", None, None, [],
    [b"a", [1, "inner one"], None, b""], "the outer one",
]  # fmt: skip


def error_of(text):
    return ResponseError(text.removeprefix("ERR "))


def shown(reply):
    """Errors by their text: exceptions are equal to nothing but themselves."""
    if isinstance(reply, list):
        return [shown(one) for one in reply]
    return str(reply) if isinstance(reply, ResponseError) else reply


@pytest.fixture(params=["hiredis", "plain"])
def reader(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(resp, "Reader", None)
    reader = reply_reader(error_of)
    assert isinstance(reader, PlainReader) == (request.param == "plain")
    return reader


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(WIRE)])
def test_replies_are_the_same_in_whatever_pieces_they_come(size, reader):
    found = []
    for begin in range(0, len(WIRE), size):
        reader.feed(WIRE[begin : begin + size])
        while (reply := reader.gets()) is not NOTHING:
            found.append(shown(reply))
    assert found == REPLIES


def test_what_is_no_reply_is_said_to_be_none(reader):
    reader.feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(InvalidResponse):
        reader.gets()
