"""`claim`: leased, started and loaded in one step, and the same answer when it is asked again."""

import pytest
from support.cells import LEASE_MS, START_MS, body, open_cell

from antiphon.errors import StoreError


async def test_a_claim_leases_starts_and_loads(cell):
    await cell.put("t1", text=b'{"text":"hi"}')
    turn = await cell.take_one("w1", token="abc")
    assert (turn.session_id, turn.turn_id, turn.request) == ("s", "t1", b'{"text":"hi"}')
    assert (turn.run, turn.attempt, turn.crashes, turn.errors, turn.step) == (1, 1, 0, 0, 1)
    assert turn.fence == "1-abc"
    assert (turn.journal, turn.history, turn.history_length) == ([], [], 0)
    assert await cell.status() == "running"
    assert await cell.look_at() == START_MS + LEASE_MS
    assert await cell.queue() == []
    assert (await cell.events())[-1] | {"at": 0, "seq": 0} == {
        "type": "turn_started", "session_id": "s", "turn_id": "t1", "run": 1, "attempt": 1, "step": 1,
        "worker": "w1", "at": 0, "seq": 0,
    }  # fmt: skip
    assert await cell.redis.hgetall("ant:held:w1") == {b"s": b"1-abc", b"": b"abc"}
    await cell.end(turn)


async def test_a_repeated_claim_gives_the_same_turns_and_changes_nothing(cell):
    for number in range(3):
        await cell.put(f"t{number}", f"s{number}")
    first = await cell.take("w1", limit=2, token="abc")
    before = await cell.contents()
    again = await cell.take("w1", limit=2, token="abc")
    by_id = sorted(again.turns, key=lambda turn: turn.turn_id)
    assert by_id == sorted(first.turns, key=lambda turn: turn.turn_id)
    assert len(by_id) == 2
    assert await cell.contents() == before
    for turn in [*first.turns, await cell.take_one("w1")]:
        await cell.end(turn)


async def test_a_repeated_claim_leaves_out_what_was_finished_or_reaped_since(cell):
    for number in range(3):
        await cell.put(f"t{number}", f"s{number}")
    turns = (await cell.take("w1", token="abc")).turns
    await cell.end(turns[0])
    await cell.renew("w1", [(turns[2].session_id, turns[2].fence)], lease_ms=10 * LEASE_MS)
    await cell.reap_after(LEASE_MS)
    again = await cell.take("w1", token="abc")
    assert [turn.turn_id for turn in again.turns] == ["t2"]
    for turn in [*again.turns, await cell.take_one()]:
        await cell.end(turn)


async def test_each_turn_of_a_claim_has_a_fence_of_its_own_and_later_ones_are_higher(cell):
    for number in range(5):
        await cell.put(f"t{number}", f"s{number}")
    turns = [turn for limit in (3, 8) for turn in (await cell.take(limit=limit)).turns]
    numbers = [int(turn.fence.partition("-")[0]) for turn in turns]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 5
    for turn in turns:
        assert await cell.end(turn)


async def test_a_turn_that_was_drained_brings_its_journal(cell):
    turn = await cell.started()
    await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[body()])
    assert await cell.give_back(turn, "drain")
    again = await cell.take_one("w2")
    assert (again.attempt, again.journal) == (1, [b"one"])
    assert await cell.end(again)


async def test_a_newer_claim_of_the_same_worker_does_not_bring_older_turns_again(cell):
    await cell.put("t1", "s1")
    await cell.put("t2", "s2")
    first = await cell.take_one("w1", limit=1, token="aaa")
    second = await cell.take_one("w1", limit=1, token="bbb")
    assert [turn.turn_id for turn in (await cell.take("w1", token="bbb")).turns] == ["t2"]
    await cell.end(first)
    await cell.end(second)


async def test_no_more_than_the_limit_is_taken_and_the_bell_rings_for_the_rest(cell):
    for number in range(5):
        await cell.put(f"t{number}", f"s{number}")
    await cell.redis.delete("ant:bell:antiphon")
    turns = (await cell.take(limit=3)).turns
    assert [turn.turn_id for turn in turns] == ["t0", "t1", "t2"]
    assert await cell.redis.llen("ant:bell:antiphon") == 1
    await cell.redis.delete("ant:bell:antiphon")
    turns += (await cell.take(limit=3)).turns
    assert await cell.redis.exists("ant:bell:antiphon") == 0
    for turn in turns:
        await cell.end(turn)


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_what_a_claim_has_no_room_for_keeps_its_place_and_the_bell_rings(limit, cell):
    for number in range(5):
        await cell.put(f"t{number}", f"s{number}")
    await cell.redis.delete(cell.keys.bell("antiphon"))
    assert [turn.turn_id for turn in (await cell.take(limit=limit)).turns] == [f"t{n}" for n in range(limit)]
    assert await cell.queue() == [f"t{n}" for n in range(limit, 5)]
    assert await cell.redis.llen(cell.keys.bell("antiphon")) == 1


async def test_the_last_entry_that_a_claim_has_no_room_for_rings_the_bell(cell):
    await cell.put("t0", "s0")
    await cell.put("t1", "s1")
    await cell.redis.delete(cell.keys.bell("antiphon"))
    assert len((await cell.take(limit=1)).turns) == 1
    assert await cell.queue() == ["t1"]
    assert await cell.redis.llen(cell.keys.bell("antiphon")) == 1


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_in_an_outage_all_entries_keep_their_places(number, cell):
    for n in range(number):
        await cell.put(f"t{n}", f"s{n}")
    await cell.redis.rename(cell.keys.active, "aside")
    await cell.redis.set(cell.keys.active, "damaged", ex=60)
    with pytest.raises(StoreError):
        await cell.take()
    assert await cell.queue() == [f"t{n}" for n in range(number)]
    await cell.redis.rename("aside", cell.keys.active)
    assert len((await cell.take()).turns) == number


async def test_in_an_outage_entries_stay_in_the_queue_that_they_are_in(cell):
    """RQ's tools may have put a turn into another queue than its own."""
    await cell.put("t0", "s0")
    await cell.put("t1", "s1", queue="low")
    await cell.redis.rpoplpush("rq:queue:antiphon", "rq:queue:low")
    await cell.redis.rename(cell.keys.active, "aside")
    await cell.redis.set(cell.keys.active, "damaged", ex=60)
    with pytest.raises(StoreError):
        await cell.take(queues=["low"])
    assert await cell.redis.lrange("rq:queue:low", 0, -1) == [b"t0", b"t1"]
    await cell.redis.rename("aside", cell.keys.active)
    assert [turn.turn_id for turn in (await cell.take(queues=["low"])).turns] == ["t0", "t1"]


async def test_queues_are_served_in_the_order_given(cell):
    await cell.put("t1", "s1", queue="low")
    await cell.put("t2", "s2", queue="high")
    claims = await cell.take(limit=1, queues=["high", "low"])
    assert [turn.turn_id for turn in claims.turns] == ["t2"]
    low = await cell.take_one(queues=["high", "low"])
    assert (low.turn_id, low.queue) == ("t1", "low")
    for turn in [*claims.turns, low]:
        await cell.end(turn)


async def test_one_session_runs_one_turn_at_a_time(cell):
    await cell.put_each("t1", "t2")
    await cell.redis.rpush("rq:queue:antiphon", "t2", "t1", "t2")
    turn = await cell.take_one()
    assert turn.turn_id == "t1"
    assert (await cell.take()).turns == []
    await cell.end(turn)
    turn = await cell.take_one()
    assert turn.turn_id == "t2"
    await cell.end(turn)


async def test_only_the_first_turn_of_a_session_is_taken_whatever_another_one_says(cell):
    await cell.put_each("t1", "t2")
    await cell.redis.hset("ant:turn:t2", "status", "queued")
    await cell.redis.lpush("rq:queue:antiphon", "t2")
    assert [turn.turn_id for turn in (await cell.take(limit=8)).turns] == ["t1"]
    assert await cell.status("t2") == "queued"


async def test_a_second_entry_in_the_queue_runs_nothing_twice(cell):
    await cell.put("t1")
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    turn = await cell.take_one()
    await cell.end(turn)
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    assert (await cell.take()).turns == []
    assert await cell.event_types() == ["turn_queued", "turn_started", "turn_finished"]


@pytest.mark.parametrize(("tail", "expected"), [(-1, 3), (0, 0), (2, 2), (9, 3)])
async def test_the_history_comes_as_long_as_the_turn_asked_for(cell, tail, expected):
    await cell.end(await cell.started("t1"), messages=[b"1", b"2", b"3"])
    turn = await cell.started("t2", tail=tail)
    assert turn.history == [b"1", b"2", b"3"][3 - expected :]
    assert turn.history_length == 3
    await cell.end(turn)


async def test_a_claim_by_id_takes_that_turn_alone(cell):
    await cell.put("t1", "s1")
    await cell.put("t2", "s2")
    await cell.redis.rpush("rq:queue:antiphon", "t2", "t2")  # RQ's tools may list a job more than once
    turn = await cell.take_one(only="t2", token="abc")
    assert turn.turn_id == "t2"
    assert await cell.queue() == ["t1"]
    assert (await cell.take(only="t2", token="abc")).turns == [turn]
    assert (await cell.take("w2", only="t2")).turns == []
    assert (await cell.take("w2", only="unknown")).turns == []
    await cell.end(turn)
    await cell.end(await cell.take_one())


async def test_a_turn_that_has_crashed_twice_is_left_to_a_process_of_its_own(cell):
    await cell.put("t1")
    for _ in range(2):
        await cell.take_one()
        await cell.reap_after(LEASE_MS)
    claims = await cell.take()
    assert (claims.turns, claims.alone) == ([], ["t1"])
    turn = await cell.take_one(only="t1")
    assert (turn.attempt, turn.crashes) == (3, 2)
    await cell.end(turn)


async def test_a_turn_that_must_run_alone_is_offered_again_when_nobody_did(cell):
    await cell.put("t1")
    for _ in range(2):
        await cell.take_one()
        await cell.reap_after(LEASE_MS)
    await cell.wait(29_000)
    assert (await cell.take()).alone == ["t1"]
    assert await cell.queue() == []
    assert await cell.reap_after(30_000 - 1) == [], (
        "its process starts, however long the turn had been queued"
    )
    assert [done.what for done in await cell.reap_after(1)] == ["repaired"]
    await cell.end(await cell.take_one(only="t1"))


async def crashed_twice(cell, turn="t1", session="s"):
    await cell.put(turn, session)
    for _ in range(2):
        await cell.take_one(only=turn)
        await cell.reap_after(LEASE_MS)


async def test_of_turns_that_must_run_alone_no_more_are_taken_than_there_is_room_for(cell):
    for name in "abc":
        await crashed_twice(cell, name, f"s-{name}")
    await cell.put("d", "s-d")
    await cell.redis.delete("rq:queue:antiphon")
    await cell.redis.rpush("rq:queue:antiphon", *"abcd")
    await cell.redis.delete("ant:bell:antiphon")
    claims = await cell.take("full", alone_limit=0)
    assert ([turn.turn_id for turn in claims.turns], claims.alone) == (["d"], [])
    assert await cell.queue() == ["a", "b", "c"]
    assert [await cell.status(name) for name in "abc"] == ["queued"] * 3
    assert not await cell.redis.exists("ant:bell:antiphon"), "it would be told of them again and again"
    assert (await cell.take("w1", alone_limit=1)).alone == ["a"]
    assert (await cell.take("w2", alone_limit=8)).alone == ["b", "c"]
    await cell.end(claims.turns[0])


async def test_a_turn_that_was_to_run_alone_is_handed_back_when_its_worker_dies(cell):
    """The claim took it out of its queue, and no process of its own has claimed it yet."""
    await crashed_twice(cell)
    assert (await cell.take("w1")).alone == ["t1"]
    assert [done.what for done in await cell.reap(holder="w2")] == []
    assert await cell.queue() == []
    assert [(done.turn_id, done.what) for done in await cell.reap(holder="w1")] == [("t1", "repaired")]
    assert await cell.queue() == ["t1"]
    assert await cell.redis.exists("ant:held:w1", "ant:bell:antiphon") == 1
    assert (await cell.take("w2")).alone == ["t1"], "it has crashed no more often than before"


async def test_a_lost_answer_about_turns_that_run_alone_is_given_again(cell):
    await crashed_twice(cell)
    await cell.put("t2", "s2")
    first = await cell.take("w1", token="abc")
    assert ([turn.turn_id for turn in first.turns], first.alone) == (["t2"], ["t1"])
    again = await cell.take("w1", token="abc")
    assert (again.turns, again.alone) == (first.turns, first.alone)
    turn = await cell.take_one("w1-alone", only="t1")
    again = await cell.take("w1", token="abc")
    assert (again.turns, again.alone) == (first.turns, [])
    await cell.end(turn)
    await cell.end(first.turns[0])


@pytest.mark.parametrize("how", ["its process has it", "another worker has it", "it is cancelled"])
async def test_a_worker_answers_for_a_turn_that_runs_alone_only_until(how, cell):
    await crashed_twice(cell)
    assert (await cell.take("w1")).alone == ["t1"]
    assert set(await cell.redis.hkeys("ant:held:w1")) == {b"s", b""}
    if how == "its process has it":
        turn = await cell.take_one("w1-alone", only="t1")
    elif how == "it is cancelled":
        await cell.cancel("t1", "enough")
    else:
        await cell.reap_after(30_000)
        assert (await cell.take("w2")).alone == ["t1"]
    assert await cell.redis.hkeys("ant:held:w1") == [b""]
    before = await cell.contents()
    before.pop("ant:held:w1")
    assert await cell.reap(holder="w1") == []
    assert await cell.contents() == before
    if how == "its process has it":
        await cell.end(turn)


async def test_a_suspended_cell_gives_out_nothing(cell):
    await cell.put("t1", "s1")
    turn = await cell.take_one(token="abc")
    await cell.put("t2", "s2")
    await cell.redis.set("rq:suspended", 1)
    claims = await cell.take()
    assert claims.suspended
    assert await cell.queue() == ["t2"]
    assert (await cell.take(token="abc")).turns == [turn], "a repetition gets its first answer"


async def test_a_job_that_is_no_turn_is_handed_over_and_can_be_failed_alone(cell):
    await cell.redis.hset("rq:job:odd", mapping={"data": b"\x80\x04junk", "origin": "antiphon"})
    await cell.redis.rpush("rq:queue:antiphon", "odd", "vanished")
    await cell.put("t1")
    claims = await cell.take()
    assert [turn.turn_id for turn in claims.turns] == ["t1"]
    [job] = claims.foreign
    assert (job.job_id, job.queue, job.data) == ("odd", "antiphon", b"\x80\x04junk")
    assert await cell.redis.zscore("rq:wip:antiphon", "odd:w1") is not None
    await cell.fail_job(job, "w1", "no turn")
    assert await cell.redis.hmget("rq:job:odd", "status", "exc_info") == [b"failed", b"no turn"]
    assert await cell.redis.zscore("rq:failed:antiphon", "odd") is not None
    assert await cell.redis.zscore("rq:wip:antiphon", "odd:w1") is None
    assert await cell.redis.ttl("rq:job:odd") > 0
    await cell.end(claims.turns[0])


async def test_a_flood_of_other_jobs_does_not_come_all_at_once(cell):
    async with cell.redis.pipeline() as pipe:
        for number in range(20):
            pipe.hset(f"rq:job:odd{number}", "data", "x").rpush("rq:queue:antiphon", f"odd{number}")
        await pipe.execute()
    await cell.redis.rpush("rq:queue:antiphon", *[f"vanished{number}" for number in range(3000)])
    await cell.put("t1")
    claims = await cell.take(limit=8)
    assert len(claims.foreign) == 8
    for _ in range(8):
        if claims.turns:
            break
        assert await cell.redis.exists("ant:bell:antiphon")
        await cell.redis.delete("ant:bell:antiphon")
        claims = await cell.take(limit=8)
    assert [turn.turn_id for turn in claims.turns] == ["t1"]
    await cell.end(claims.turns[0])


async def test_a_retry_that_is_not_due_is_not_claimed(cell):
    await cell.give_back(await cell.started("t1"), "error", delay_ms=5_000)
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    assert (await cell.take()).turns == []
    await cell.wait(5_000)
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    turn = await cell.take_one()
    assert (turn.attempt, turn.errors) == (2, 1)
    await cell.end(turn)


async def test_the_journal_of_earlier_attempts_comes_with_the_turn(cell):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"one", b"two"], bodies=[body()])
    await cell.reap_after(LEASE_MS)
    turn = await cell.take_one("w2")
    assert (turn.journal, turn.step, turn.attempt, turn.crashes) == ([b"one", b"two"], 2, 2, 1)
    await cell.end(turn)


async def test_a_turn_that_failed_by_crashes_starts_afresh_when_it_is_requeued(cell):
    await cell.put("t1")
    for _ in range(3):
        await cell.take_one(only="t1")
        await cell.wait(LEASE_MS)
        await cell.reap(crash_limit=3)
    assert await cell.status() == "failed"
    await cell.redis.hset("rq:job:t1", "status", "queued")
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    claims = await cell.take()
    assert claims.alone == []
    [turn] = claims.turns
    assert (turn.run, turn.attempt, turn.crashes, turn.errors, turn.step) == (2, 1, 0, 0, 1)
    record = await cell.turn("t1")
    assert (record.error_code, record.error) == ("", "")
    assert [(event["type"], event["run"]) for event in await cell.events()][-3:] == [
        ("turn_failed", 1), ("turn_queued", 2), ("turn_started", 2),
    ]  # fmt: skip


async def test_a_suspended_turn_is_not_claimed(cell):
    await cell.hold(await cell.started("t1"))
    assert (await cell.take()).turns == []
    assert await cell.reap_after(30_000) == []
    assert await cell.look_at() == await cell.now() + 30_000


async def test_an_empty_queue_is_asked_once(cell):
    await cell.redis.config_resetstat()
    assert (await cell.take(limit=100)).turns == []
    assert (await cell.redis.info("commandstats"))["cmdstat_lpop"]["calls"] == 1


async def test_turns_of_another_prefix_stay_where_they_stand(redis_url):
    async with open_cell(redis_url) as ours, open_cell(redis_url, prefix="other") as theirs:
        for cell, turn in [(theirs, "a"), (ours, "b"), (theirs, "c"), (ours, "d"), (theirs, "e")]:
            await cell.put(turn, f"s-{turn}")
        await ours.redis.delete("ant:bell:antiphon")
        claims = await ours.take("w1", limit=1, token="one")
        assert [turn.turn_id for turn in claims.turns] == ["b"]
        assert (claims.foreign, claims.others) == ([], [("antiphon", "other")])
        assert await ours.queue() == ["a", "c", "d", "e"]
        assert await ours.redis.llen("ant:bell:antiphon") == 1, "there is more for us"
        await ours.end(claims.turns[0])
        claims = await ours.take("w1")
        assert [turn.turn_id for turn in claims.turns] == ["d"]
        await ours.end(claims.turns[0])
        await ours.redis.delete("ant:bell:antiphon")
        claims = await ours.take("w1", queues=["antiphon", "empty"])
        assert (claims.turns, claims.foreign, claims.others) == ([], [], [("antiphon", "other")])
        assert await ours.queue() == ["a", "c", "e"]
        assert not await ours.redis.exists("ant:bell:antiphon"), "nothing of it is for us"
        claims = await theirs.take("w2")
        assert [turn.turn_id for turn in claims.turns] == ["a", "c", "e"]
        assert claims.others == []
        for turn in claims.turns:
            await theirs.end(turn)


async def test_a_run_remembers_when_its_first_attempt_began(cell):
    began = await cell.now()
    await cell.put("t1")
    await cell.wait(10)
    await cell.give_back(await cell.take_one(), "error", delay_ms=0)
    await cell.wait(10)
    await cell.end(await cell.take_one(), "failed")
    fields = (await cell.turn("t1")).fields
    assert int(fields["started_at"]) == began + 10
    await cell.wait(10)
    await cell.requeue("t1")
    await cell.end(await cell.take_one())
    assert int((await cell.turn("t1")).fields["started_at"]) == began + 30


async def test_a_failed_turn_that_rqs_tools_offered_leaves_no_second_entry_when_it_is_claimed(cell):
    await cell.end(await cell.started("t1"), "failed")
    await cell.redis.hset("rq:job:t1", "status", "queued")
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    turn = await cell.take_one()
    assert (turn.run, await cell.queue()) == (2, [])
    await cell.end(turn)


async def test_a_failed_turn_that_a_stock_worker_took_from_rq_requeue_runs_again(cell):
    """RQ's own worker marks a job as started before it asks. A failure that is still listed was not requeued."""
    await cell.end(await cell.started("t1"), "failed")
    await cell.redis.hset("rq:job:t1", "status", "started")
    assert (await cell.take(only="t1")).turns == [], "the entry was an old one"
    assert await cell.redis.hget("rq:job:t1", "status") == b"failed"
    await cell.redis.hset("rq:job:t1", "status", "started")
    await cell.redis.zrem("rq:failed:antiphon", "t1")
    turn = await cell.take_one(only="t1")
    assert (turn.run, await cell.queue()) == (2, [])
    await cell.end(turn)


async def _shown_by_rq(cell, turn):
    """The record of a job, of which RQ reads an empty field as one that is not there; whether it expires."""
    record = await cell.redis.hgetall(f"rq:job:{turn}")
    return {name: value for name, value in record.items() if value}, await cell.redis.ttl(
        f"rq:job:{turn}"
    ) > 0


@pytest.mark.parametrize("status", ["finished", "failed", "cancelled", "waiting", "suspended"])
async def test_what_a_stock_worker_must_not_run_is_shown_as_before(status, cell):
    """It marks as started whatever it finds in the queue, and keeps the record for ever."""
    await cell.put("t1")
    if status == "waiting":
        await cell.put("t2")
    elif status == "suspended":
        await cell.hold(await cell.take_one())
    else:
        await cell.end(await cell.take_one(), status)
    turn = "t2" if status == "waiting" else "t1"
    before = await _shown_by_rq(cell, turn)
    await cell.redis.hset(f"rq:job:{turn}", mapping={"status": "started", "worker_name": "stock"})
    await cell.redis.persist(f"rq:job:{turn}")
    assert (await cell.take(only=turn)).turns == []
    after = await _shown_by_rq(cell, turn)
    assert after == before
    if status in ("waiting", "suspended"):
        await cell.cancel("t1", "enough")
        await cell.cancel("t2", "enough") if turn == "t2" else None


async def test_a_turn_that_was_cancelled_in_rq_before_it_ran_alone_does_not_run(cell):
    await crashed_twice(cell)
    assert (await cell.take("w1")).alone == ["t1"]
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    assert (await cell.take("w1-alone", only="t1")).turns == []
    assert [done.what for done in await cell.reap()] == ["cancelled"]
    assert await cell.status("t1") == "cancelled"
