"""What another attempt reads back of an answer that readers have seen the beginning of."""

import pytest
from support.cells import body

from antiphon_worker.process import published as reading
from antiphon_worker.process.published import published

pytestmark = pytest.mark.one_server


def delta(kind, text="", step=1, **more):
    return body(f"{kind}_delta", step=step, **({"text": text} if text else {}), **more)


async def test_the_pieces_of_an_answer_are_counted_by_their_kind(cell):
    turn = await cell.started("t1")
    await cell.say(
        turn, 1,
        delta("text", "He"), delta("reasoning", "hm"), delta("text", "llo"), delta("refusal", "no, no"),
        delta("tool_call", call_id="c1", name="look"), delta("tool_call", call_id="c1", arguments='{"a":1}'),
        body("item", step=1, provider="openai", item={"type": "web_search_call"}),
        body("step_finished", step=1),
    )  # fmt: skip
    found = await published(cell, turn, 1)
    assert found.texts == {"text": 5, "reasoning": 2, "refusal": 6}
    assert (found.calls, found.items) == ({"c1": 7}, 1)


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_every_event_is_counted_once_however_many_are_read_at_a_time(page, cell, monkeypatch):
    monkeypatch.setattr(reading, "PAGE", page)
    turn = await cell.started("t1")
    await cell.say(turn, 1, *[delta("text", "ab")] * 5)
    assert (await published(cell, turn, 1)).texts == {"text": 10}


async def test_what_was_withdrawn_and_what_belongs_to_others_is_left_out(cell):
    await cell.end(await cell.started("t0"))
    turn = await cell.started("t1")
    await cell.say(
        turn, 1,
        delta("text", "withdrawn"), body("turn_retrying", step=1), delta("text", "seen"),
        delta("text", "of another step", step=2), delta("text", "of another turn", turn="t0"),
        delta("text", "of another run", run=2),
    )  # fmt: skip
    assert (await published(cell, turn, 1)).texts == {"text": 4}
