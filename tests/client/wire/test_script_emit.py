"""`emit`: a window of events is logged and published once, and only by the holder."""

import json

import pytest
from support.cells import LEASE_MS, START_MS, body, stranger

from antiphon.errors import StoreError
from antiphon.wire.cell import SUPERSEDED
from antiphon.wire.records import Emit


async def test_a_window_is_logged_with_dense_seqs_and_the_servers_time(cell):
    turn = await cell.started("t1")
    await cell.wait(7)
    assert await cell.say(turn, 1, body(text="a"), body(text='"b"')) == ""
    assert [(event["seq"], event["at"], event["text"]) for event in (await cell.events())[2:]] == [
        (3, START_MS + 7, "a"), (4, START_MS + 7, '"b"'),
    ]  # fmt: skip


async def test_a_repeated_window_is_not_logged_twice(cell):
    turn = await cell.started("t1")
    await cell.say(turn, 1, body(text="a"))
    await cell.say(turn, 2, body(text="b"))
    before = await cell.contents()
    assert await cell.say(turn, 2, body(text="b")) == ""
    assert await cell.say(turn, 1, body(text="a")) == ""
    assert await cell.contents() == before


async def test_a_new_holder_starts_its_windows_from_one(cell):
    turn = await cell.started("t1")
    await cell.say(turn, 5, body(text="a"))
    await cell.give_back(turn, "drain")
    turn = await cell.take_one()
    await cell.say(turn, 1, body(text="b"))
    assert [event["text"] for event in await cell.events() if event["type"] == "text_delta"] == ["a", "b"]


async def test_who_does_not_hold_the_lease_writes_nothing(cell):
    turn = await cell.started("t1")
    before = await cell.contents()
    for fence in ("", "0", "1", turn.fence + "x", turn.fence[:-1], turn.fence.upper()):
        assert await cell.say(stranger(turn, fence), 1, body()) == SUPERSEDED
    assert await cell.contents() == before


async def test_an_empty_fence_is_nobodys(cell):
    turn = await cell.started("t1")
    await cell.end(turn)
    before = await cell.contents()
    assert await cell.say(stranger(turn, ""), 1, body()) == SUPERSEDED
    assert await cell.emit([Emit("nowhere", "", 1, [body()])]) == [SUPERSEDED]
    assert await cell.contents() == before


async def test_a_worker_whose_turn_was_recovered_writes_nothing(cell):
    await cell.put("t1")
    zombie = await cell.take_one("w1")
    await cell.reap_after(LEASE_MS)
    await cell.take_one("w2")
    before = await cell.contents()
    assert await cell.say(zombie, 1, body()) == SUPERSEDED
    assert await cell.contents() == before


async def test_one_superseded_session_does_not_touch_the_others_of_the_round_trip(cell):
    await cell.put("t1", "s1")
    await cell.put("t2", "s2")
    turns = {turn.session_id: turn for turn in (await cell.take()).turns}
    answers = await cell.emit(
        [
            Emit("s1", turns["s1"].fence, 1, [body(text="a")]),
            Emit("s1", "9-wrong", 1, [body(text="b")]),
            Emit("s2", turns["s2"].fence, 1, [body(text="c")]),
        ]
    )
    assert answers == ["", SUPERSEDED, ""]
    assert (await cell.events("s1"))[-1]["text"] == "a"
    assert (await cell.events("s2"))[-1]["text"] == "c"


async def test_an_error_of_one_session_is_that_sessions_alone(cell):
    await cell.put("t1", "s1")
    await cell.put("t2", "s2")
    turns = {turn.session_id: turn for turn in (await cell.take()).turns}
    await cell.redis.rename("ant:events:s1", "aside")
    await cell.redis.set("ant:events:s1", "no stream")
    answers = await cell.emit([Emit(s, turns[s].fence, 1, [body()]) for s in ("s1", "s2")])
    assert isinstance(answers[0], StoreError)
    assert answers[1] == ""
    await cell.redis.rename("aside", "ant:events:s1")


async def test_the_answer_carries_the_wish_to_stop(cell):
    turn = await cell.started("t1")
    assert await cell.cancel("t1", "enough") == "requested"
    assert await cell.say(turn, 1, body()) == "enough"
    assert await cell.say(turn, 1, body()) == "enough"


@pytest.mark.parametrize("text", ['"', "\\", "☃", "\u0000", "%d %s", "a" * 10_000])
async def test_bodies_are_not_touched(cell, text):
    turn = await cell.started("t1")
    sent = json.dumps({"type": "text_delta", "text": text, "empty": [], "big": 12345678901234567890}).encode()
    await cell.say(turn, 1, sent)
    [(_, fields)] = await cell.redis.xrevrange("ant:events:s", count=1)
    assert fields[b"e"] == b'{"seq":3,"at":%d,' % START_MS + sent[1:]
