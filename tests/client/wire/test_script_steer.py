"""`steer`: a running turn takes the input of the turns that wait to steer it."""

from __future__ import annotations

import json

import pytest
from support.cells import stranger

from antiphon.input.ids import TurnId
from antiphon.wire.cell import STEER, SUPERSEDED
from antiphon.wire.errors import JournalShorter

REQUEST = b'{"messages":[{"role":"user","parts":[{"type":"text","text":"Stop."}]}],"metadata":{}}'
INPUT = len(REQUEST) - len(b'{"messages":') - len(b',"metadata":{}}')


async def running(cell, *waiting: str):
    """A turn that runs, with others behind it."""
    turn = await cell.started("t1")
    for name in waiting:
        await cell.put(name)
    return turn


async def steered(cell, name: str = "t9", session: str = "s") -> int:
    return await cell.put(name, session, REQUEST, if_busy="steer", input_bytes=INPUT)


async def fields(cell, turn: str):
    return (await cell.turn(TurnId(turn))).fields


async def test_a_steered_turn_waits_and_the_running_one_hears_of_it(cell):
    turn = await running(cell, "t2")
    assert not turn.steered
    step = {"step": 2, "entries": [b"{}"], "bodies": []}
    assert await cell.append_step(turn, length=0, **step) == ""
    assert await steered(cell) == 2
    assert await cell.inbox() == ["t1", "t2", "t9"]
    for _ in range(2):
        assert await cell.append_step(turn, length=1, **step) == STEER
    await cell.give_back(turn, "drain")
    assert (await cell.take_one()).steered, "whoever claims it next is told as well"


async def test_what_is_taken_stands_in_the_journal_and_ends_the_turn_that_brought_it(cell):
    turn = await running(cell, "t2")
    await steered(cell)
    created = (await fields(cell, "t9"))["created"].decode()
    for _ in range(2):
        stop, entries = await cell.steer(turn, length=0, step=3)
        assert stop == ""
        assert [json.loads(entry) for entry in entries] == [
            {"type": "steered", "version": 2, "turn_id": "t9", "created": int(created),
             "request": json.loads(REQUEST)}
        ]  # fmt: skip
    assert await cell.redis.lrange("ant:journal:t1", 0, -1) == entries
    assert await cell.inbox() == ["t1", "t2"]
    record = await cell.turn(TurnId("t9"))
    assert (record.status, record.fields["steered_into"]) == ("finished", b"t1")
    assert "place" not in record.fields
    assert await cell.redis.ttl("ant:turn:t9") > 0
    *_, joined, ended = await cell.events()
    shared = {"session_id": "s", "run": 1}
    assert joined.items() >= {
        "type": "turn_steered", "turn_id": "t1", "steered_id": "t9", "step": 3, "attempt": 1, **shared
    }.items()  # fmt: skip
    assert joined["input"] == json.loads(REQUEST)["messages"]
    assert ended.items() >= {"type": "turn_finished", "turn_id": "t9", "steered_into": "t1"}.items()
    assert record.last_seq == ended["seq"]
    step = {"step": 2, "entries": [b"{}"], "bodies": []}
    assert await cell.append_step(turn, length=1, **step) == "", "nothing waits any more"


async def test_only_what_waits_for_this_turn_is_taken(cell):
    turn = await running(cell)
    await steered(cell, "t8")
    await cell.end(turn)
    await steered(cell, "t9")
    assert await cell.inbox() == ["t8", "t9"]
    turn = await cell.take_one()
    await cell.put("t7")
    await cell.redis.rename("ant:turn:t7", "whole")
    await cell.redis.set("ant:turn:t7", "damaged")
    _, entries = await cell.steer(turn, length=0, step=1)
    assert [json.loads(entry)["turn_id"] for entry in entries] == ["t9"]
    await cell.redis.rename("whole", "ant:turn:t7")


async def test_a_turn_that_is_being_stopped_takes_nothing(cell):
    turn = await running(cell)
    await steered(cell)
    await cell.cancel("t1", "enough")
    assert await cell.steer(turn, length=0, step=1) == ("enough", [])
    await steered(cell, "t10")
    assert "steers" not in await fields(cell, "t10")
    await cell.end(turn, "cancelled")
    assert await cell.queue() == ["t9"]


async def test_a_stranger_takes_nothing_and_a_lost_journal_is_noticed(cell):
    turn = await running(cell)
    await steered(cell)
    assert await cell.steer(stranger(turn, "7-x"), length=0, step=1) == (SUPERSEDED, [])
    with pytest.raises(JournalShorter):
        await cell.steer(turn, length=1, step=1)
    assert await cell.inbox() == ["t1", "t9"]


async def test_a_further_run_begins_with_what_the_turn_was_steered_with(cell):
    turn = await running(cell)
    await steered(cell, "t8")
    _, first = await cell.steer(turn, length=0, step=1)
    await steered(cell, "t9")
    _, second = await cell.steer(turn, length=1, step=2)
    await cell.end(turn, "failed")
    await cell.requeue("t1")
    assert (await cell.take_one()).journal == [*first, *second]


async def test_a_turn_that_runs_again_steers_nothing(cell):
    turn = await running(cell)
    await steered(cell)
    await cell.end(turn, "failed")
    await cell.end(await cell.take_one(), "failed")
    await cell.requeue("t1")
    turn = await cell.take_one()
    await cell.requeue("t9")
    await steered(cell, "t10")
    _, entries = await cell.steer(turn, length=0, step=1)
    assert [json.loads(entry)["turn_id"] for entry in entries] == ["t10"]


async def test_what_was_cancelled_in_rq_steers_nothing(cell):
    turn = await running(cell)
    await steered(cell, "t8")
    await steered(cell, "t9")
    await cell.redis.hset("rq:job:t8", "status", "canceled")
    _, entries = await cell.steer(turn, length=0, step=2)
    assert [json.loads(entry)["turn_id"] for entry in entries] == ["t9"]
    await cell.end(turn)
    assert [done.what for done in await cell.reap()] == ["cancelled"]
    assert (await cell.turn("t8")).status == "cancelled"
