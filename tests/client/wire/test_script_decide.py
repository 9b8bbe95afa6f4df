"""`decide`: one decision for each open call, and the turn goes on once after the last one."""

import asyncio
import json

import pytest
from support.cells import START_MS, open_cell

from antiphon.errors import AlreadyDecided, NotSuspended, TurnDeleted, TurnNotFound, UsageError
from antiphon.model import Decision, OpenCall, Usage, encode
from antiphon.wire.suspension import decide, decisions_of, suspend

PAY = OpenCall("c1", "pay", {"amount": 3})
LOOK = OpenCall("c2", "look", kind="tool", seconds=20.0)


async def test_a_turn_goes_on_when_its_last_call_is_decided(cell):
    await cell.put("other", "s2")
    await cell.put("t1")
    await cell.hold(await cell.take_one(only="t1"), PAY, LOOK)
    await cell.wait(1_000)
    await cell.decide("c2", "result", content="a tree", by="ada")
    assert await cell.status() == "suspended"
    await cell.wait(1_000)
    await cell.decide("c1", by="bob", arguments={"amount": 2})
    assert await cell.queue() == ["t1", "other"], "it goes on before what came later"
    assert await cell.redis.zcard("ant:suspended") == 0
    event = (await cell.events())[-1]
    assert (event["type"], event["turn_id"], event["run"]) == ("turn_resumed", "t1", 1)
    decisions = [
        {
            "call_id": "c1",
            "kind": "approve",
            "by": "bob",
            "arguments": {"amount": 2},
            "at": START_MS + 2_000,
        },
        {"call_id": "c2", "kind": "result", "by": "ada", "content": "a tree", "at": START_MS + 1_000},
    ]
    assert event["decisions"] == decisions, "in the order of the calls"
    turn = await cell.take_one(limit=1)
    assert [json.loads(one) for one in turn.decisions] == decisions
    assert decisions_of(turn.decisions, turn.turn_id)[0] == Decision(
        "c1", "approve", by="bob", arguments={"amount": 2}, at=START_MS + 2_000
    )


async def test_the_second_decision_gets_the_first_one(cell):
    await cell.hold(await cell.started("t1"))
    await cell.decide(by="ada")
    for end in (False, True):
        before = await cell.redis.hgetall("ant:turn:t1"), await cell.events()
        with pytest.raises(AlreadyDecided) as caught:
            await cell.decide(kind="reject", by="bob")
        assert caught.value.decision == Decision("c1", "approve", by="ada", at=START_MS)
        assert "approved before, by ada" in caught.value.message
        assert (await cell.redis.hgetall("ant:turn:t1"), await cell.events()) == before
        if not end:
            await cell.end(await cell.take_one())


async def test_of_ten_decisions_one_counts_and_the_turn_goes_on_once(cell):
    await cell.hold(await cell.started("t1"))
    raced = [cell.decide(kind="reject", by=f"client {n}") for n in range(10)]
    answers = await asyncio.gather(*raced, return_exceptions=True)
    assert answers.count(None) == 1
    winner = f"client {answers.index(None)}"
    assert {one.decision.by for one in answers if isinstance(one, AlreadyDecided)} == {winner}
    assert (await cell.event_types()).count("turn_resumed") == 1
    assert await cell.queue() == ["t1"]


async def test_a_repetition_gets_the_first_answer(cell, monkeypatch):
    await cell.hold(await cell.started("t1"))
    monkeypatch.setattr("antiphon.wire.suspension.new_op", lambda: "00ff")
    await cell.decide()
    before = await cell.contents()
    await cell.decide()
    assert await cell.contents() == before


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [("c1", "result", "approved or rejected"), ("c2", "approve", "waits for its result")],
)
async def test_a_decision_must_be_of_the_kind_that_the_call_waits_for(cell, call, kind, message):
    await cell.hold(await cell.started("t1"), PAY, LOOK)
    before = await cell.contents()
    with pytest.raises(UsageError, match=message):
        await cell.decide(call, kind)
    assert await cell.contents() == before
    await cell.decide("c2", "reject")


async def test_what_does_not_wait_takes_no_decision(cell):
    with pytest.raises(TurnNotFound):
        await cell.decide()
    await cell.put("t1")
    with pytest.raises(NotSuspended) as caught:
        await cell.decide()
    assert caught.value.status == "queued"
    await cell.hold(await cell.take_one())
    with pytest.raises(NotSuspended) as caught:
        await cell.decide("c9")
    assert caught.value.status == "suspended"
    assert "'c9'" in caught.value.message
    await cell.cancel("t1", "enough")
    await cell.end(await cell.take_one(), "cancelled")
    with pytest.raises(NotSuspended) as caught:
        await cell.decide()
    assert caught.value.status == "cancelled"


@pytest.mark.parametrize("call", ["c 1", 'say "x" \\ \n', "c%d", "ü" * 30])
async def test_a_call_may_have_any_id(cell, call):
    await cell.hold(await cell.started("t1"), PAY, OpenCall(call, "pay", seconds=1.0))
    await cell.reap_after(1_000)
    with pytest.raises(AlreadyDecided):
        await cell.decide(call)
    await cell.decide("c1")
    turn = await cell.take_one()
    assert [one.call_id for one in decisions_of(turn.decisions, turn.turn_id)] == ["c1", call]


@pytest.mark.parametrize(("at_limit", "kind"), [("reject", "reject"), ("approve", "approve")])
async def test_a_time_limit_decides(cell, at_limit, kind):
    await cell.hold(await cell.started("t1"), OpenCall("c1", "pay", seconds=5.0, at_limit=at_limit), PAY)
    assert await cell.reap_after(4_999) == []
    assert await cell.reap_after(1) == []
    with pytest.raises(AlreadyDecided, match="before: Nobody decided within the time limit") as caught:
        await cell.decide()
    first = caught.value.decision
    assert (first.kind, first.by, first.at) == (kind, None, START_MS + 5_000)
    assert first.reason == "Nobody decided within the time limit."


async def test_a_turn_goes_on_when_the_time_of_its_last_call_is_over(cell):
    await cell.hold(await cell.started("t1"), OpenCall("c1", "pay", seconds=5.0))
    assert [done.what for done in await cell.reap_after(5_000)] == ["resumed"]
    assert (await cell.event_types())[-1] == "turn_resumed"
    assert (await cell.take_one()).turn_id == "t1"


async def test_a_wait_without_a_limit_ends_after_thirty_days(cell):
    await cell.hold(await cell.started("t1"))
    assert await cell.reap_after(30 * 24 * 3600_000 - 1) == []
    assert [done.what for done in await cell.reap_after(30_000)] == ["resumed"]


@pytest.mark.parametrize("aside", [False, True])
async def test_a_time_limit_fails_the_turn(cell, aside):
    await cell.put_each("t1", "t2")
    await cell.hold(await cell.take_one(), OpenCall("c1", "pay", seconds=5.0, at_limit="fail"), aside=aside)
    if aside:
        other = await cell.take_one()
    assert [(done.turn_id, done.what) for done in await cell.reap_after(5_000)] == [("t1", "not_decided")]
    record = await cell.turn("t1")
    assert (record.status, record.error_code) == ("failed", "not_decided")
    assert record.fields["journal"] == b'[{"step":1}]'
    assert await cell.redis.hget("ant:session:s", "untold") == b"t1 "
    assert await cell.redis.zcard("ant:suspended") == 0
    assert await cell.inbox() == ["t2"]
    if not aside:
        other = await cell.take_one()
    await cell.end(other)


async def test_a_turn_that_was_passed_by_has_its_time_limit_while_others_run(cell):
    await cell.put_each("t1", "t2")
    await cell.hold(await cell.take_one(), OpenCall("c1", "pay", seconds=5.0), aside=True)
    other = await cell.take_one()
    for _ in range(2):
        await cell.wait(2_500)
        await cell.renew("w1", [(other.session_id, other.fence)], lease_ms=10_000)
    assert [(done.turn_id, done.what) for done in await cell.reap()] == [("t1", "resumed")]
    assert await cell.inbox() == ["t2", "t1"]


@pytest.mark.parametrize("aside", [False, True])
async def test_a_time_limit_leaves_what_other_turns_have_added_to_the_usage(cell, aside):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"{}"], bodies=[], usage=b"mine")
    await cell.hold(turn, OpenCall("c1", "pay", seconds=5.0, at_limit="fail"), aside=aside)
    if aside:
        await cell.redis.hset("ant:session:s", "usage", b"of another turn")
    await cell.reap_after(5_001)
    assert await cell.status() == "failed"
    found = await cell.redis.hget("ant:session:s", "usage")
    assert found == (b"of another turn" if aside else b"mine")


async def test_what_was_decided_stays_with_a_turn_that_a_time_limit_fails(cell):
    await cell.hold(await cell.started("t1"), PAY, OpenCall("c2", "look", seconds=5.0, at_limit="fail"))
    await cell.decide("c1", by="ada")
    await cell.reap_after(5_001)
    step, decision = json.loads((await cell.turn("t1")).fields["journal"])
    assert step == {"step": 1}
    assert (decision["decision"]["call_id"], decision["decision"]["by"]) == ("c1", "ada")


async def test_a_time_limit_adds_what_a_turn_has_used_to_the_total_of_those_that_passed_it_by(cell):
    await cell.put("t1")
    call = OpenCall("c1", "pay", seconds=5.0, at_limit="fail")
    assert await suspend(cell, await cell.take_one(), [call], bodies=[], aside=Usage(3, 4, cost=0.5)) == ""
    await cell.redis.hset("ant:session:s", "usage", encode(Usage(10, 20)))
    await cell.reap_after(5_001)
    assert await cell.status() == "failed"
    total = json.loads(await cell.redis.hget("ant:session:s", "usage"))
    assert (total["input_tokens"], total["output_tokens"]) == (13, 24)
    assert (total["cost"], total["unpriced_tokens"]) == (0.5, 30)


async def test_the_time_while_a_turn_was_suspended_is_not_spent(cell):
    await cell.put("t1")
    await cell.wait(1_000)
    turn = await cell.take_one()
    for spent in (0, 2_000):
        assert turn.spent_ms == spent
        await cell.wait(2_000)
        await cell.hold(turn)
        await cell.wait(60_000)
        await cell.decide()
        turn = await cell.take_one()
    assert turn.spent_ms == 4_000
    await cell.finish(turn, "failed", error_code="x", error="It failed.", bodies=[])
    await cell.requeue("t1")
    assert (await cell.take_one()).spent_ms == 0
    assert not await cell.redis.hexists("ant:turn:t1", "waited")


@pytest.mark.parametrize("aside", [False, True])
async def test_a_cancelled_turn_is_ended_by_a_worker_and_keeps_its_steps(cell, aside):
    await cell.hold(await cell.started("t1"), aside=aside)
    assert await cell.cancel("t1", "enough", "partial") == "requested"
    assert await cell.redis.zcard("ant:suspended") == 0
    turn = await cell.take_one()
    assert (turn.turn_id, turn.stop, turn.journal) == ("t1", "enough", [b'{"step":1}'])
    await cell.end(turn, "cancelled")
    assert await cell.redis.pttl("ant:session:s") > 0


async def test_a_cancelled_turn_that_was_passed_by_ends_behind_the_one_that_runs(cell):
    await cell.put_each("t1", "t2")
    await cell.hold(await cell.take_one(), aside=True)
    other = await cell.take_one()
    assert await cell.cancel("t1", "enough") == "requested"
    assert await cell.inbox() == ["t2", "t1"]
    assert await cell.redis.hget("rq:job:t1", "status") == b"deferred"
    assert await cell.queue() == []
    await cell.end(other)
    turn = await cell.take_one()
    assert (turn.turn_id, turn.stop) == ("t1", "enough")


@pytest.mark.parametrize("aside", [False, True])
async def test_a_turn_that_is_cancelled_in_rq_is_cancelled(cell, aside):
    await cell.hold(await cell.started("t1"), aside=aside)
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    assert [done.turn_id for done in await cell.reap_after(30_000)] == ["t1"]
    turn = await cell.take_one()
    assert turn.stop == "cancelled in RQ"
    await cell.end(turn, "cancelled")


@pytest.mark.parametrize("aside", [False, True])
async def test_a_cancel_in_rq_does_not_wait_for_the_next_look_at_a_long_sleep(cell, aside):
    await cell.hold(await cell.started("t1"), OpenCall("c1", "sleep", seconds=28_800.0), aside=aside)
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    await cell.redis.zadd("rq:canceled:antiphon", {"t1": await cell.now() / 1000})
    assert [done.turn_id for done in await cell.reap(queues=["antiphon"])] == ["t1"]
    await cell.end(await cell.take_one(), "cancelled")


@pytest.mark.parametrize("aside", [False, True])
async def test_a_decision_after_a_cancel_in_rq_says_so(cell, aside):
    await cell.hold(await cell.started("t1"), aside=aside)
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    with pytest.raises(NotSuspended) as caught:
        await cell.decide()
    assert caught.value.status == "cancelled"
    turn = await cell.take_one()
    assert turn.stop == "cancelled in RQ"
    await cell.end(turn, "cancelled")


@pytest.mark.parametrize("aside", [False, True])
async def test_what_rq_did_to_the_record_is_put_right(cell, aside):
    await cell.hold(await cell.started("t1"), aside=aside)
    await cell.redis.delete("rq:job:t1", "rq:deferred:antiphon")
    assert await cell.reap_after(30_000) == []
    assert await cell.redis.hget("rq:job:t1", "status") == b"deferred"
    assert await cell.redis.zscore("rq:deferred:antiphon", "t1") is not None


async def test_an_entry_of_a_suspended_turn_in_a_queue_is_dropped_and_rqs_record_put_right(cell):
    await cell.hold(await cell.started("t1"))
    await cell.redis.hset("rq:job:t1", "status", "queued")
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    assert (await cell.take()).turns == []
    assert await cell.queue() == []
    assert await cell.redis.hget("rq:job:t1", "status") == b"deferred"


async def test_a_new_run_of_a_turn_knows_nothing_of_the_old_calls(cell):
    await cell.hold(await cell.started("t1"))
    await cell.decide()
    await cell.end(await cell.take_one(), "failed")
    await cell.requeue("t1")
    turn = await cell.take_one()
    assert turn.decisions == []
    fields = (await cell.turn("t1")).fields
    assert not [
        name for name in fields if name.partition(":")[0] in ("wait", "decision", "calls", "suspended_at")
    ]


async def test_limits_move_with_a_clock_that_is_put_back(cell):
    await cell.put("t1")
    await cell.put("t2", "s2")
    for turn in (await cell.take()).turns:
        calls = OpenCall("c1", "pay", seconds=3600.0), OpenCall("c2", "pay")
        await cell.hold(turn, *calls, aside=turn.turn_id == "t2")
    await cell.reap()
    await cell.reap_after(-1800_000)
    for turn in ("t1", "t2"):
        waits = [(await cell.turn(turn)).fields[name] for name in ("wait:1", "wait:2")]
        assert waits[0] == f"{START_MS + 1800_000} reject approval c1".encode()
        assert waits[1].startswith(f"{START_MS + 30 * 24 * 3600_000 - 1800_000}".encode())
    await cell.reap_after(1800_000 + 1800_000)
    for turn in ("t1", "t2"):
        with pytest.raises(AlreadyDecided):
            await cell.decide("c1", turn=turn)


async def test_a_deleted_session_takes_its_passed_by_turn_along(redis_url):
    from antiphon.wire.editing import delete_session

    async with open_cell(redis_url) as cell:
        await cell.hold(await cell.started("t1"), aside=True)
        assert await delete_session(cell, "s")
        with pytest.raises(TurnDeleted):
            await cell.turn("t1")
        assert not await cell.redis.exists("ant:aside", "ant:suspended", "ant:inbox:s", "ant:active")


async def test_what_an_older_release_cancelled_enters_the_inbox(cell):
    await cell.hold(await cell.started("t1"), aside=True)
    await cell.redis.hset("ant:turn:t1", mapping={"status": "queued", "cancel": "enough"})
    assert [done.what for done in await cell.reap_after(30_000)] == ["cancelled"]
    turn = await cell.take_one()
    assert turn.stop == "enough"
    await cell.end(turn, "cancelled")


@pytest.mark.parametrize("aside", [False, True])
async def test_a_damaged_call_harms_its_session_alone(cell, aside):
    await cell.put("t1")
    await cell.put("t2", "s2")
    for turn in (await cell.take()).turns:
        await cell.hold(turn, OpenCall("c1", "pay", seconds=1.0), aside=aside)
    await cell.redis.hset("ant:turn:t1", "wait:1", "junk")
    done = {(one.turn_id or one.session_id): one.what for one in await cell.reap_after(1_000)}
    assert done == {"t1" if aside else "s": "quarantined", "t2": "resumed"}
    await cell.redis.hset("ant:turn:t1", "wait:1", f"{START_MS} reject approval c1")
    assert "resumed" in [one.what for one in await cell.reap_after(60_000)]
    assert not await cell.redis.exists("ant:quarantined")
    await decide_nothing(cell)


async def decide_nothing(cell):
    with pytest.raises(AlreadyDecided):
        await decide(cell, "t1", Decision("c1", "approve"))


async def test_a_turn_whose_record_is_gone_is_dropped(cell):
    await cell.hold(await cell.started("t1"), aside=True)
    await cell.redis.delete("ant:turn:t1", "ant:journal:t1")
    await cell.reap_after(30_000)
    assert not await cell.redis.exists("ant:aside")
    await cell.redis.delete("ant:suspended", "ant:session:s", "ant:events:s", "ant:turns:s")
