"""What another attempt hands out of an answer in the background: nothing that readers have already."""

import pytest

from antiphon_worker.providers.base import (
    ItemPart,
    Published,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
    ToolCallPiece,
)
from antiphon_worker.providers.openai_responses.background import _Rest


class Outlet:
    full = False

    def __init__(self):
        self.got = []
        self.append = self.got.append

    async def drain(self):
        """Nothing waits here."""

    def read_from(self, source):
        """Nothing waits for what is read."""


def rest(published, *increments):
    outlet = Outlet()
    left = _Rest(outlet, published)
    for increment in increments:
        left.append(increment)
    return outlet.got


@pytest.mark.parametrize(
    ("kind", "piece"), [("text", TextPiece), ("reasoning", ReasoningPiece), ("refusal", RefusalPiece)]
)
def test_the_characters_that_readers_have_are_left_out_of_each_kind_of_text(kind, piece):
    given = [piece("abc"), piece("def"), piece("ghi")]
    assert rest(Published(texts={kind: 4}), *given) == [piece("ef"), piece("ghi")]
    assert rest(Published(texts={kind: 3}), *given) == given[1:]
    assert rest(Published(texts={"other": 4}), *given) == given


def test_items_and_calls_that_readers_have_are_left_out():
    items = [ItemPart({"id": number}) for number in range(3)]
    assert rest(Published(items=2), *items) == items[2:]
    call = [ToolCallPiece("c1", "look", ""), ToolCallPiece("c1", "", '{"a"'), ToolCallPiece("c1", "", ":1}")]
    assert rest(Published(calls={"c1": 2}), *call) == [ToolCallPiece("c1", "", 'a"'), call[2]]
    assert rest(Published(calls={"c2": 2}), *call) == call
