"""`cancel`: at once where nobody runs the turn, by its worker where somebody does."""

import json

import pytest
from support.cells import LEASE_MS

from antiphon.errors import TurnNotFound
from antiphon.wire.keys import needs_ttl


async def test_a_queued_head_is_cancelled_and_the_next_turn_starts(cell):
    await cell.put_each("t1", "t2")
    assert await cell.cancel("t1", "enough") == "cancelled"
    assert await cell.status("t1") == "cancelled"
    assert (await cell.inbox(), await cell.queue()) == (["t2"], ["t2"])
    assert await cell.history() == []
    event = (await cell.events())[2]
    assert (event["type"], event["turn_id"], event["reason"]) == ("turn_cancelled", "t1", "enough")
    assert await cell.redis.ttl("ant:turn:t1") > 0


async def test_a_waiting_turn_leaves_its_place_and_the_head_runs_on(cell):
    for turn_id in ("t1", "t2", "t3"):
        await cell.put(turn_id)
    turn = await cell.take_one()
    assert await cell.cancel("t2", "enough") == "cancelled"
    assert await cell.inbox() == ["t1", "t3"]
    assert await cell.queue() == []
    assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == [""]
    await cell.end(turn)
    assert await cell.queue() == ["t3"]


@pytest.mark.parametrize("which", ["t2", "t3", "t4"])
async def test_the_turns_around_a_cancelled_one_keep_their_order(which, cell):
    await cell.started("t1")
    await cell.put_each("t2", "t3", "t4")
    await cell.cancel(which, "not needed")
    assert await cell.inbox() == [turn for turn in ("t1", "t2", "t3", "t4") if turn != which]


async def test_the_last_turn_cancelled_lets_the_session_go(cell):
    await cell.put("t1", ttl_ms=100_000)
    await cell.cancel("t1", "enough")
    assert await cell.look_at() is None
    assert 0 < await cell.redis.ttl("ant:events:s") <= 100
    assert await cell.queue() == []


async def test_a_running_turn_is_left_to_its_worker(cell):
    async with cell.redis.pubsub() as heard:
        turn = await cell.started("t1", "it's")
        await heard.subscribe("ant:control:w1")
        await heard.get_message(timeout=5)
        for _ in range(2):
            assert await cell.cancel("t1", "enough") == "requested"
            message = await heard.get_message(timeout=5)
            assert json.loads(message["data"]) == {
                "command": "cancel", "session_id": "it's", "turn_id": "t1", "reason": "enough", "keep": "steps",
            }  # fmt: skip
        assert await cell.status() == "running"
        assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == ["enough"]


@pytest.mark.parametrize("reason", ["", "SUPERSEDED"])
async def test_no_reason_can_be_taken_for_another_answer(cell, reason):
    turn = await cell.started("t1")
    await cell.cancel("t1", reason)
    assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == ["cancelled"]


async def test_a_cancelled_turn_whose_worker_dies_is_ended_by_the_next(cell):
    await cell.started("t1")
    await cell.cancel("t1", "enough")
    await cell.reap_after(LEASE_MS)
    again = await cell.take_one("w2")
    assert again.stop == "enough"
    await cell.end(again, "cancelled")


@pytest.mark.parametrize("delay_ms", [0, 60_000])
async def test_what_a_turn_has_achieved_is_kept_by_the_worker_that_ends_it(cell, delay_ms):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[])
    await cell.give_back(turn, "error", delay_ms=delay_ms)
    for _ in range(2):
        assert await cell.cancel("t1", "enough") == "requested"
        assert await cell.queue() == ["t1"]
    again = await cell.take_one()
    assert (again.stop, again.journal) == ("enough", [b"one"])


async def test_a_retry_without_anything_to_keep_is_cancelled_at_once(cell):
    await cell.put_each("t1", "t2")
    await cell.give_back(await cell.take_one(), "error", delay_ms=60_000)
    assert await cell.cancel("t1", "enough") == "cancelled"
    assert await cell.queue() == ["t2"]


async def test_a_delayed_turn_is_cancelled_before_it_is_due(cell):
    await cell.put("t1", due_in_ms=5_000, ttl_ms=1000)
    assert await cell.cancel("t1", "enough") == "cancelled"
    assert await cell.redis.exists("ant:due") == 0
    assert await cell.event_types() == ["turn_cancelled"]
    assert await cell.redis.ttl("ant:events:s") > 0
    assert await cell.reap_after(5_000) == []
    assert await cell.inbox() == []


async def test_a_delayed_turn_cancelled_beside_a_running_one_leaves_that_alone(cell):
    turn = await cell.started("t1")
    await cell.put("t2", due_in_ms=5_000)
    look_at = await cell.look_at()
    assert await cell.cancel("t2", "enough") == "cancelled"
    assert await cell.look_at() == look_at
    assert await cell.redis.ttl("ant:session:s") == -1
    assert await cell.end(turn)


async def test_a_turn_that_has_ended_says_how(cell):
    for number, status in enumerate(["finished", "failed", "cancelled"]):
        await cell.end(await cell.started(f"t{number}"), status)
        before = await cell.contents()
        assert await cell.cancel(f"t{number}", "enough") == status
        assert await cell.contents() == before


async def test_a_cancelled_turn_is_cancelled_once(cell):
    await cell.put("t1")
    assert await cell.cancel("t1", "enough") == "cancelled"
    assert await cell.cancel("t1", "enough") == "cancelled"
    assert await cell.event_types() == ["turn_queued", "turn_cancelled"]


async def test_an_unknown_turn_is_not_found(cell):
    with pytest.raises(TurnNotFound):
        await cell.cancel("t1", "enough")


async def test_a_turn_cancelled_while_it_waited_keeps_the_reason(cell):
    await cell.put_each("t1", "t2")
    await cell.put("t3", due_in_ms=5_000)
    for turn in ("t1", "t2", "t3"):
        await cell.cancel(turn, f"{turn} is not wanted")
        assert (await cell.turn(turn)).error == f"{turn} is not wanted"


async def lasting(cell):
    """Keys without a time to live that should have one, RQ's records among them."""
    keys = [key for kind in ("ant:*", "rq:job:*", "rq:results:*") for key in await cell.redis.keys(kind)]
    return [key for key in keys if needs_ttl(key.decode()) and await cell.redis.ttl(key) == -1]


@pytest.mark.parametrize("journal", [False, True], ids=["no step", "a step"])
@pytest.mark.parametrize("state", ["queued", "retrying", "running", "to run alone", "a last crash"])
async def test_a_turn_that_is_cancelled_while_no_worker_lives_keeps_nothing_for_ever(state, journal, cell):
    """Its worker was killed. What it has achieved waits for a worker; then the session's life runs out as usual."""
    await cell.put("t1")
    await cell.put("t2", "s", due_in_ms=1000)
    turn = await cell.take_one()
    if journal:
        await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[])
    match state:
        case "queued":
            await cell.reap(holder="w1")
        case "retrying":
            await cell.give_back(turn, "error", delay_ms=60_000)
            await cell.reap(holder="w1")
        case "to run alone":
            await cell.redis.hset("ant:turn:t1", "crashes", 1)
            await cell.reap(holder="w1")
            assert (await cell.take("w2")).alone == ["t1"]
        case "a last crash":
            await cell.redis.hset("ant:turn:t1", "crashes", 8)
            await cell.reap(holder="w1")
    waits = journal or state == "running"
    assert await cell.cancel("t1", "enough") == ("requested" if waits else "cancelled")
    assert await cell.cancel("t2", "enough") == "cancelled"
    assert bool(await lasting(cell)) is waits
    for holder in ("w1", "w2"):
        await cell.reap(holder=holder)
    await cell.reap_after(LEASE_MS)
    if waits:
        claims = await cell.take("w3")
        turns = claims.turns or (await cell.take("w4", only="t1")).turns
        assert [turn.stop for turn in turns] == ["enough"]
        await cell.end(turns[0], "cancelled", messages=[b"one"])
    assert await cell.status() == "cancelled"
    assert await lasting(cell) == []
    assert await cell.look_at() is None
    assert await cell.redis.zrange("rq:wip:antiphon", 0, -1) == []
    assert await cell.reap_after(24 * 3600_000) == []
    assert await lasting(cell) == []


async def begun(cell, *turns):
    """A turn that was claimed and waits for its retry, and others behind it."""
    for turn_id in ("t1", *turns):
        await cell.put(turn_id)
    turn = await cell.take_one()
    assert await cell.give_back(turn, "error", delay_ms=60_000, reason="it broke", code="provider")


async def test_what_is_to_stay_is_known_to_the_worker_that_ends_the_turn(cell):
    turn = await cell.started("t1")
    assert await cell.keep_of("t1") == "steps"
    assert await cell.cancel("t1", "enough", "partial") == "requested"
    assert await cell.keep_of("t1") == "partial"
    await cell.reap(holder="w1")
    again = await cell.take_one("w2")
    assert (again.stop, await cell.keep_of("t1")) == ("enough", "partial")
    assert await cell.cancel("t1", "and now", "nothing") == "requested"
    assert await cell.keep_of("t1") == "nothing"
    assert not await cell.end(turn, "cancelled")
    await cell.end(again, "cancelled")


async def test_a_turn_that_has_begun_is_ended_by_a_worker_that_keeps_its_question(cell):
    await begun(cell, "t2")
    assert await cell.cancel("t1", "enough", "partial") == "requested"
    assert (await cell.queue(), await cell.keep_of("t1")) == (["t1"], "partial")
    turn = await cell.take_one()
    assert turn.stop == "enough"
    await cell.end(turn, "cancelled")


@pytest.mark.parametrize("keep", ["steps", "nothing"])
async def test_a_turn_that_has_begun_and_leaves_nothing_is_cancelled_at_once(cell, keep):
    await begun(cell)
    assert await cell.cancel("t1", "enough", keep) == "cancelled"


@pytest.mark.parametrize("due_in_ms", [0, 1000])
async def test_a_turn_that_has_not_begun_is_cancelled_at_once_whatever_is_to_stay(cell, due_in_ms):
    await cell.put("t1", due_in_ms=due_in_ms)
    assert await cell.cancel("t1", "enough", "partial") == "cancelled"
    assert await cell.history() == []


async def test_a_cancel_with_rqs_tools_keeps_the_finished_steps(cell):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"{}"], bodies=[])
    await cell.redis.hset("ant:turn:t1", "keep", "partial")
    await cell.give_back(turn, "error", delay_ms=60_000)
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    await cell.reap_after(60_000)
    assert await cell.keep_of("t1") == "steps"
    await cell.end(await cell.take_one(), "cancelled")


async def test_a_turn_that_leaves_nothing_keeps_its_place_in_the_history(cell):
    await cell.put_each("t1", "t2")
    await cell.end(await cell.take_one(), messages=[b"1", b"2", b"3"])
    await cell.cancel("t2", "enough")
    assert (await cell.turn("t2")).fields["place"] == b"3"
    assert "place" not in (await cell.turn("t1")).fields
