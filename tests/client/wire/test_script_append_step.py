"""`append_step`: what a turn has achieved is kept once, with its events, by the holder alone."""

import pytest
from support.cells import LEASE_MS, body, stranger

from antiphon.errors import CorruptRecord
from antiphon.wire.cell import SUPERSEDED
from antiphon.wire.errors import JournalShorter


async def test_a_step_is_kept_and_published(cell):
    turn = await cell.started("t1")
    answer = await cell.append_step(
        turn,
        length=0,
        step=2,
        entries=[b"one", b"two"],
        bodies=[body("step_finished"), body("tool_call")],
    )
    assert answer == ""
    assert await cell.redis.lrange("ant:journal:t1", 0, -1) == [b"one", b"two"]
    assert (await cell.event_types())[2:] == ["step_finished", "tool_call"]
    assert (await cell.turn("t1")).fields["step"] == b"2"


async def test_entries_without_events_are_kept_too(cell):
    turn = await cell.started("t1")
    assert await cell.append_step(turn, length=0, step=1, entries=[b"started"], bodies=[]) == ""
    assert await cell.append_step(turn, length=1, step=2, entries=[b"ended"], bodies=[]) == ""
    assert await cell.redis.lrange("ant:journal:t1", 0, -1) == [b"started", b"ended"]
    assert len(await cell.events()) == 2


async def test_without_entries_it_looks_at_the_fence_and_the_length_and_writes_nothing(cell):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=1, entries=[b"started"], bodies=[])
    before = await cell.contents()
    assert await cell.append_step(turn, length=1, step=2, entries=[], bodies=[], usage=b"more") == ""
    with pytest.raises(JournalShorter):
        await cell.append_step(turn, length=2, step=2, entries=[], bodies=[])
    assert (
        await cell.append_step(stranger(turn, "0-other"), length=1, step=2, entries=[], bodies=[])
        == SUPERSEDED
    )
    assert await cell.contents() == before


async def test_a_repeated_step_is_kept_once(cell):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[body("step_finished")])
    before = await cell.contents()
    again = await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[body("step_finished")])
    assert again == ""
    assert await cell.contents() == before


@pytest.mark.parametrize("length", [0, 1, 4])
async def test_another_length_than_expected_is_refused(cell, length):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"one", b"two", b"three"], bodies=[])
    before = await cell.contents()
    with pytest.raises(CorruptRecord, match="3 entries"):
        await cell.append_step(turn, length=length, step=3, entries=[b"x"], bodies=[body()])
    assert await cell.contents() == before


async def test_who_does_not_hold_the_lease_appends_nothing(cell):
    turn = await cell.started("t1")
    before = await cell.contents()
    for fence in ("", "1", turn.fence + "x"):
        answer = await cell.append_step(
            stranger(turn, fence), length=0, step=2, entries=[b"x"], bodies=[body()]
        )
        assert answer == SUPERSEDED
    assert await cell.contents() == before


async def test_a_worker_whose_turn_was_recovered_appends_nothing(cell):
    await cell.put("t1")
    zombie = await cell.take_one("w1")
    await cell.reap_after(LEASE_MS)
    before = await cell.contents()
    assert await cell.append_step(zombie, length=0, step=2, entries=[b"x"], bodies=[]) == SUPERSEDED
    assert await cell.contents() == before


async def test_the_answer_carries_the_wish_to_stop(cell):
    turn = await cell.started("t1")
    await cell.cancel("t1", "enough")
    for _ in range(2):
        assert await cell.append_step(turn, length=0, step=2, entries=[b"x"], bodies=[]) == "enough"


@pytest.mark.parametrize(
    ("answering", "withdrawn"), [("", True), ("2", True), ("0", True), ("1", False)],
    ids=["nothing", "another step", "no longer", "this step"],
)  # fmt: skip
async def test_a_retry_withdraws_nothing_of_an_answer_that_goes_on(cell, answering, withdrawn):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=1, entries=[b"one"], bodies=[], answering="1")
    await cell.append_step(turn, length=1, step=1, entries=[b"two"], bodies=[], answering=answering or "3")
    await cell.reap_after(LEASE_MS)
    assert ("turn_retrying" in await cell.event_types()) == withdrawn
    turn = await cell.take_one("w2")
    await cell.give_back(turn, "drain")
    assert (await cell.event_types()).count("turn_retrying") == 2 * withdrawn
    assert (await cell.take_one("w2")).journal == [b"one", b"two"]


async def test_the_next_run_of_a_turn_knows_nothing_of_the_answer_of_the_last_one(cell):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=1, entries=[b"one"], bodies=[], answering="1")
    await cell.wait(LEASE_MS)
    await cell.reap(crash_limit=1)
    assert await cell.status() == "failed"
    await cell.requeue("t1")
    await cell.take_one("w2")
    await cell.reap_after(LEASE_MS)
    assert (await cell.event_types())[-1] == "turn_retrying"
