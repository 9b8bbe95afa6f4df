"""`children/forward`: the events of a child are in the stream of the turn that waits for it once, in their order."""

import pytest
from msgspec.structs import replace

from antiphon.events import ChildEvent
from antiphon.input.request import ParentTurn
from antiphon.model import OpenCall
from antiphon.wire.forwarding import OVER, Asks, Batch, forward, owners_of, pending_below

ASKED = OpenCall("call_1", "refund", {"amount": 30})
WAITING = ParentTurn("s", "t1", 1)


def batch(after, *own, over=False, **asks):
    events = [
        ChildEvent(
            session_id="s", turn_id="t1", run=1, child_id="c", event={"type": "step_finished", "seq": seq}
        )
        for seq in own
    ]
    return Batch(after, max(own, default=after), events, asks, over)


async def seqs(cell):
    return [event["event"]["seq"] for event in await cell.events() if event["type"] == "child_event"]


async def test_events_of_a_child_are_published_once_whoever_brings_them_and_how_often(cell):
    await cell.started("t1")
    assert await forward(cell, WAITING, "c", batch(0, 1, 2)) == 2
    assert await forward(cell, WAITING, "c", batch(0, 1, 2)) == 2, "a repetition is behind"
    assert await forward(cell, WAITING, "c", batch(1, 2, 3)) == 2, "as is another one that has read less"
    assert await forward(cell, WAITING, "c", batch(2, 3)) == 3
    assert await forward(cell, WAITING, "other", batch(0, 1)) == 1
    assert await seqs(cell) == [1, 2, 3, 1]
    events = await cell.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


async def test_what_is_left_out_moves_the_place_as_well(cell):
    await cell.started("t1")
    assert await forward(cell, WAITING, "c", Batch(0, 40, [], {})) == 40
    assert await forward(cell, WAITING, "c", batch(40, 41)) == 41
    assert await seqs(cell) == [41]


async def test_nothing_follows_the_end_of_a_child(cell):
    await cell.started("t1")
    assert await forward(cell, WAITING, "c", batch(0, 1, over=True)) == OVER
    assert await forward(cell, WAITING, "c", batch(1, 2)) == OVER
    assert await seqs(cell) == [1]


@pytest.mark.parametrize("turn", ["run", "id", "ended"])
async def test_a_turn_that_does_not_wait_gets_no_events(cell, turn):
    claimed = await cell.started("t1")
    waiting = {"run": replace(WAITING, run=2), "id": replace(WAITING, turn_id="t2"), "ended": WAITING}[turn]
    if turn == "ended":
        await cell.finish(claimed, "finished", bodies=[])
    assert await forward(cell, waiting, "c", batch(0, 1)) == OVER
    assert await seqs(cell) == []


async def test_the_calls_of_children_are_those_of_the_turn_above_until_they_are_answered(cell):
    await cell.started("t1")
    asks = {"c": Asks("t1", [ASKED]), "d": Asks("c", [ASKED])}
    await forward(cell, WAITING, "c", batch(0, 1, **asks))
    record = await cell.turn("t1")
    assert [call.call_id for call in pending_below(record)] == ["c:call_1", "d:call_1"]
    assert owners_of(record, "c:call_1") == [("c", "call_1")]
    assert owners_of(record, "call_1") == [("c", "call_1"), ("d", "call_1")]
    assert owners_of(record, "call_2") == owners_of(record, "e:call_1") == []
    await forward(cell, WAITING, "c", batch(1, 2, c=Asks("t1", [])))
    record = await cell.turn("t1")
    assert [call.call_id for call in pending_below(record)] == ["d:call_1"]
    assert owners_of(record, "c:call_1") == [("c", "call_1")], "it was decided: the child says so"


@pytest.mark.parametrize("ended", ["c", "d"])
async def test_nothing_is_asked_below_a_child_that_has_ended(cell, ended):
    await cell.started("t1")
    await forward(cell, WAITING, "c", batch(0, 1, e=Asks("d", [ASKED])))
    assert len(pending_below(await cell.turn("t1"))) == 1
    over = {ended: Asks("t1" if ended == "c" else "c", [], over=True)}
    await forward(cell, WAITING, "c", batch(1, 2, over=ended == "c", **over))
    assert pending_below(await cell.turn("t1")) == []
