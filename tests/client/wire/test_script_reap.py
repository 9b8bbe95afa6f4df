"""`reap`: expired leases, dead workers, retries that are due, and heads that nobody would find."""

import pytest
from support.cells import LEASE_MS, START_MS


def acts(reaped):
    return [(one.session_id, one.turn_id, one.what) for one in reaped]


async def test_the_turn_of_an_expired_lease_starts_again_elsewhere(cell):
    await cell.put("other", "s2")
    await cell.put("t1")
    await cell.take_one(only="t1")
    assert await cell.reap_after(LEASE_MS - 1) == []
    assert acts(await cell.reap_after(1)) == [("s", "t1", "recovered")]
    assert await cell.queue() == ["t1", "other"], "it goes on before what came later"
    assert await cell.redis.hkeys("ant:held:w1") == [b""]
    event = (await cell.events())[-1]
    assert (event["type"], event["code"], event["attempt"], event["step"]) == (
        "turn_retrying", "worker_died", 1, 1,
    )  # fmt: skip
    again = await cell.take_one("w2", limit=1)
    assert (again.attempt, again.crashes, again.errors) == (2, 1, 0)


async def test_a_spared_holder_keeps_its_turn_while_a_retry_and_a_delay_start(cell):
    for number in range(12):
        await cell.put(f"t{number}", f"s{number}")
    await cell.put("again", "retried")
    retried = await cell.take_one(only="again")
    await cell.give_back(retried, "error", delay_ms=LEASE_MS + 1)
    await cell.take("w1", limit=12)
    await cell.put("later", due_in_ms=LEASE_MS + 1)
    await cell.wait(LEASE_MS + 1)
    assert acts(await cell.reap(limit=2, spare=True)) == [
        ("retried", "again", "retried"),
        ("s", "later", "due"),
    ]
    assert await cell.reap(limit=2, spare=True) == []
    assert len(await cell.reap()) == 12


async def test_repeating_it_does_nothing(cell):
    await cell.started("t1")
    await cell.reap_after(LEASE_MS)
    before = await cell.contents()
    assert await cell.reap() == []
    assert await cell.reap(holder="w1") == []
    before.pop("ant:held:w1")
    assert await cell.contents() == before


async def test_all_that_a_dead_worker_held_is_recovered_before_its_leases_end(cell):
    for number in range(4):
        await cell.put(f"t{number}", f"s{number}")
    await cell.take("w1", limit=2)
    others = (await cell.take("w2", limit=2)).turns
    assert sorted(acts(await cell.reap(holder="w1"))) == [
        ("s0", "t0", "recovered"),
        ("s1", "t1", "recovered"),
    ]
    assert await cell.redis.exists("ant:held:w1") == 0
    assert await cell.queue() in (["t0", "t1"], ["t1", "t0"])
    leases = [(turn.session_id, turn.fence) for turn in others]
    assert await cell.renew("w2", leases, lease_ms=LEASE_MS) == ["", ""]
    assert acts(await cell.reap(holder="w1")) == []
    assert acts(await cell.reap(holder="unknown")) == []


async def test_a_list_of_holdings_that_is_out_of_date_takes_nothing_from_others(cell):
    await cell.put("t1")
    turn = await cell.take_one("w2")
    await cell.redis.hset("ant:held:w1", mapping={"s": "1-old", "gone": "2-old", "": "token"})
    assert acts(await cell.reap(holder="w1")) == []
    assert await cell.renew("w2", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == [""]


async def test_the_crash_limit_ends_a_turn_and_the_inbox_passes_it_by(cell):
    await cell.put_each("t1", "t2")
    for crash in range(3):
        await cell.take_one(only="t1")
        await cell.wait(LEASE_MS)
        what = "failed" if crash == 2 else "recovered"
        assert acts(await cell.reap(crash_limit=3)) == [("s", "t1", what)]
    record = await cell.turn("t1")
    assert (record.status, record.error_code) == ("failed", "worker_crashed")
    assert "3 crashes" in record.error
    event = next(event for event in await cell.events() if event["type"] == "turn_failed")
    assert (event["turn_id"], event["code"], event["message"]) == ("t1", "worker_crashed", record.error)
    assert (await cell.inbox(), await cell.queue()) == (["t2"], ["t2"])
    assert await cell.history() == []


async def test_drained_turns_and_errors_are_no_crashes(cell):
    await cell.put("t1")
    for _ in range(3):
        await cell.give_back(await cell.take_one(), "drain")
        await cell.give_back(await cell.take_one(), "error")
    await cell.take_one()
    await cell.wait(LEASE_MS)
    assert acts(await cell.reap(crash_limit=2)) == [("s", "t1", "recovered")]


async def test_a_head_that_the_queue_has_lost_is_put_back(cell):
    await cell.put("t1")
    await cell.redis.delete("rq:queue:antiphon", "ant:bell:antiphon")
    assert await cell.reap_after(29_999) == []
    assert acts(await cell.reap_after(1)) == [("s", "t1", "repaired")]
    assert await cell.queue() == ["t1"]
    assert await cell.redis.exists("ant:bell:antiphon") == 1
    assert len(await cell.events()) == 1


async def test_a_head_whose_rq_record_is_gone_gets_it_again(cell):
    await cell.put("t1")
    await cell.redis.delete("rq:job:t1")
    assert acts(await cell.reap_after(30_000)) == [("s", "t1", "repaired")]
    assert await cell.queue() == ["t1"]
    assert await cell.redis.hget("rq:job:t1", "status") == b"queued"


async def test_a_head_that_stands_in_the_queue_is_left_alone(cell):
    await cell.put("t1")
    assert await cell.reap_after(30_000) == []
    assert await cell.look_at() == await cell.now() + 30_000
    assert await cell.queue() == ["t1"]


async def test_a_head_that_a_stock_worker_took_and_died_with_is_put_back_once(cell):
    await cell.put("t1")
    await cell.redis.lmove("rq:queue:antiphon", "rq:queue:antiphon:intermediate")
    assert acts(await cell.reap_after(30_000)) == [("s", "t1", "repaired")]
    assert await cell.queue() == ["t1"]
    assert await cell.redis.exists("rq:queue:antiphon:intermediate") == 0


async def test_a_head_lost_from_a_very_long_queue_is_found_when_the_queue_has_moved_on(cell):
    await cell.put("lost", "s1")
    await cell.put("kept", "s2")
    await cell.redis.lpop("rq:queue:antiphon")
    await cell.wait(10)
    await cell.put("later", "s3")
    await cell.redis.rpush("rq:queue:antiphon", *["later"] * 1500)
    assert await cell.reap_after(30_000) == [], "whether it stands behind 'kept' is not known"
    await cell.redis.lrem("rq:queue:antiphon", 1, "kept")
    assert acts(await cell.reap_after(30_000)) == [("s1", "lost", "repaired")]
    assert (await cell.queue())[0] == "lost"
    assert await cell.reap_after(30_000) == [], "whether 'kept' stands behind the one in front is not known"
    turn = await cell.take_one(only="lost", lease_ms=60_000)
    assert acts(await cell.reap_after(30_000)) == [("s2", "kept", "repaired")]
    await cell.end(turn)
    await cell.redis.delete("rq:queue:antiphon")


async def test_no_more_sessions_than_the_limit_are_looked_at(cell):
    for number in range(5):
        await cell.put(f"t{number}", f"s{number}")
    await cell.take()
    await cell.wait(LEASE_MS)
    assert [len(await cell.reap(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_session_that_lost_its_turn_is_passed_by(cell):
    await cell.put_each("t1", "t2")
    await cell.redis.delete("ant:turn:t1")
    assert acts(await cell.reap_after(30_000)) == [("s", "t1", "dropped")]
    assert await cell.inbox() == ["t2"]
    assert (await cell.take_one()).turn_id == "t2"


async def test_one_broken_session_does_not_keep_the_others_from_recovery(cell):
    await cell.put("t1", "s1")
    await cell.put("t2", "s2")
    await cell.take()
    await cell.redis.delete("ant:turn:t1")
    await cell.wait(LEASE_MS)
    await cell.put("t3", "s1")
    assert sorted(acts(await cell.reap())) == [("s1", "t1", "dropped"), ("s2", "t2", "recovered")]
    assert [turn.turn_id for turn in (await cell.take()).turns] == ["t2", "t3"]


async def test_sessions_whose_life_is_over_leave_the_list(cell):
    await cell.end(await cell.started("t1", "gone", ttl_ms=1000))
    await cell.put("t2", "there", ttl_ms=1000)
    await cell.wait(3600_000 + 1001)
    await cell.redis.delete("ant:session:gone", "ant:events:gone", "ant:history:gone")
    await cell.reap()
    assert await cell.redis.zrange("ant:sessions", 0, -1) == [b"there"]
    assert await cell.redis.zscore("ant:sessions", "there") == await cell.now()
    await cell.settle()


async def test_the_look_at_a_holder_goes_on_when_its_lease_does(cell):
    await cell.started("t1")
    await cell.redis.zadd("ant:active", {"s": 1})
    assert await cell.reap() == []
    assert await cell.look_at() == START_MS + LEASE_MS


@pytest.mark.parametrize("holder", ["", "w1"])
async def test_a_recovered_turn_keeps_its_finished_steps(cell, holder):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[])
    await cell.wait(LEASE_MS)
    await cell.reap(holder=holder)
    assert (await cell.events())[-1]["step"] == 2
    assert (await cell.take_one("w2")).journal == [b"one"]


async def test_a_session_without_turns_is_looked_at_no_more(cell):
    await cell.redis.zadd("ant:active", {"empty": START_MS})
    assert await cell.reap() == []
    assert await cell.look_at("empty") is None


async def test_looking_after_one_dead_worker_is_no_look_at_the_rest(cell):
    await cell.put("t1", due_in_ms=1000)
    await cell.wait(1000)
    assert await cell.reap(holder="w1") == []
    assert await cell.inbox() == []
    assert acts(await cell.reap()) == [("s", "t1", "due")]


async def test_a_retry_that_is_looked_at_early_keeps_its_time(cell):
    await cell.give_back(await cell.started("t1"), "error", delay_ms=5_000)
    await cell.redis.zadd("ant:active", {"s": 1})
    assert await cell.reap() == []
    assert await cell.look_at() == START_MS + 5_000


async def foreign(cell, name="odd", worker="w1"):
    """A job that is no turn, in the hands of a worker."""
    await cell.redis.hset(f"rq:job:{name}", mapping={"data": "x", "origin": "antiphon", "status": "queued"})
    await cell.redis.rpush("rq:queue:antiphon", name)
    [job] = (await cell.take(worker)).foreign
    return job


async def test_a_job_that_is_no_turn_is_offered_again_when_its_worker_dies(cell):
    await foreign(cell)
    assert await cell.reap(holder="w2", queues=["antiphon"]) == []
    assert await cell.reap(holder="1", queues=["antiphon"]) == [], "no name is taken for the end of another"
    await cell.redis.rpush("rq:queue:antiphon", "behind it")
    await cell.redis.delete("ant:bell:antiphon")
    assert acts(await cell.reap(holder="w1", queues=["antiphon"])) == [("", "odd", "repaired")]
    assert await cell.queue() == ["odd", "behind it"]
    assert await cell.redis.zrange("rq:wip:antiphon", 0, -1) == []
    assert await cell.redis.exists("ant:bell:antiphon") == 1
    assert await cell.reap(holder="w1", queues=["antiphon"]) == []


async def test_a_job_that_is_no_turn_is_offered_again_when_its_host_is_lost(cell):
    await foreign(cell)
    await cell.wait(59_000)
    assert await cell.reap(queues=["antiphon"]) == []
    await cell.wait(1_000)
    assert await cell.reap(queues=["other"]) == []
    assert acts(await cell.reap(queues=["antiphon"])) == [("", "odd", "repaired")]
    assert await cell.queue() == ["odd"]


async def test_a_job_whose_workers_die_again_and_again_fails_visibly(cell):
    for _ in range(2):
        await foreign(cell)
        assert acts(await cell.reap(holder="w1", queues=["antiphon"])) == [("", "odd", "repaired")]
        await cell.redis.delete("rq:queue:antiphon")
    await foreign(cell)
    assert acts(await cell.reap(holder="w1", queues=["antiphon"])) == [("", "odd", "failed")]
    status, message = await cell.redis.hmget("rq:job:odd", "status", "exc_info")
    assert (status, message) == (b"failed", b"Its worker died 3 times while it read the job.")
    assert await cell.redis.zscore("rq:failed:antiphon", "odd") is not None
    assert await cell.redis.ttl("rq:job:odd") > 0
    assert (await cell.queue(), await cell.redis.zcard("rq:wip:antiphon")) == ([], 0)


async def test_a_job_that_is_damaged_is_looked_at_again_and_offered_when_it_is_mended(cell):
    await foreign(cell)
    await cell.redis.hset("rq:job:odd", "ant_deaths", "no number")
    assert await cell.reap(holder="w1", queues=["antiphon"]) == []
    assert await cell.redis.zscore("rq:wip:antiphon", "odd:w1") == START_MS / 1000 + 60
    await cell.redis.hdel("rq:job:odd", "ant_deaths")
    await cell.wait(60_000)
    assert acts(await cell.reap(queues=["antiphon"])) == [("", "odd", "repaired")]


@pytest.mark.parametrize("registry", ["canceled", "failed"])
async def test_an_end_that_is_registered_wrong_in_another_queue_is_corrected_once(registry, cell):
    await cell.end(await cell.started("t1"))
    await cell.redis.zadd(f"rq:{registry}:other", {"t1": START_MS / 1000})
    assert acts(await cell.reap(queues=["other"])) == [("s", "t1", "corrected")]
    assert not await cell.redis.exists(f"rq:{registry}:other")
    assert await cell.redis.zrange("rq:finished:antiphon", 0, -1) == [b"t1"]
    assert await cell.reap(queues=["other"]) == []


async def test_a_job_that_rqs_own_worker_runs_is_left_to_rq(cell):
    await cell.redis.hset("rq:job:odd", mapping={"data": "x", "status": "started"})
    await cell.redis.zadd("rq:wip:antiphon", {"odd:execution": 1})
    assert await cell.reap(queues=["antiphon"]) == []
    assert await cell.redis.zrange("rq:wip:antiphon", 0, -1) == [b"odd:execution"]


async def test_a_job_that_has_become_a_turn_is_not_offered_as_a_job(cell):
    """Its worker died after it had submitted the turn: the entry of the job is all that is left of it."""
    await foreign(cell)
    await cell.put("odd")
    turn = await cell.take_one("w2")
    assert await cell.reap(holder="w1", queues=["antiphon"]) == []
    assert await cell.redis.zrange("rq:wip:antiphon", 0, -1) == [f"odd:{turn.fence}".encode()]
    assert await cell.queue() == []
    await cell.end(turn)


async def test_a_clock_that_is_put_back_holds_up_no_retry_no_delay_and_no_recovery(cell):
    for turn in ("retries", "dies"):
        await cell.put(turn, turn)
    claimed = {turn.turn_id: turn for turn in (await cell.take()).turns}
    await cell.give_back(claimed["retries"], "error", delay_ms=20_000)
    await cell.put("delayed", "delayed", due_in_ms=20_000)
    await cell.put("waits", "waits")
    assert await cell.reap() == []
    assert await cell.reap_after(-600_000) == []
    acts = {(act.turn_id, act.what) for act in await cell.reap_after(20_000)}
    assert acts == {("retries", "retried"), ("dies", "recovered"), ("delayed", "due")}
    assert len((await cell.take()).turns) == 4
    await cell.reap_after(LEASE_MS)


async def test_what_begins_between_a_jump_back_and_the_next_look_is_no_crash(cell):
    await cell.put("t1")
    await cell.reap()
    for back in (600_000, 5_000):
        await cell.wait(-back)
        turn = await cell.take_one()
        assert await cell.reap() == []
        assert await cell.reap_after(LEASE_MS - 1) == []
        await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS)
        await cell.give_back(turn, "drain")
    turn = await cell.take_one()
    await cell.reap_after(-600_000)
    assert [act.what for act in await cell.reap_after(20_000)] == ["recovered"], "its worker has died"


async def test_a_turn_that_is_given_up_says_how_its_last_worker_ended(cell):
    await cell.started("t1")
    await cell.reap(holder="w1", crash_limit=1, code="loop_stalled", reason="Its loop stood still.")
    turn = await cell.turn("t1")
    message = "The turn was given up after 1 crashes of its worker. Its loop stood still."
    assert (turn.status, turn.error_code, turn.error) == ("failed", "loop_stalled", message)
    event = (await cell.events())[-1]
    assert (event["type"], event["code"], event["message"]) == ("turn_failed", "loop_stalled", message)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_a_turn_did_before_it_was_given_up_stays_with_it_and_the_next_one_learns_of_it(
    cancelled, cell
):
    await cell.put_each("t1", "t2")
    turn = await cell.take_one()
    await cell.append_step(turn, length=0, step=2, entries=[b'{"a":1}', b'{"b":2}'], bodies=[])
    if cancelled:
        await cell.cancel(turn.turn_id, "enough")
    await cell.reap(holder="w1", crash_limit=1)
    fields = (await cell.turn("t1")).fields
    assert (fields["journal"], fields["place"]) == (b'[{"a":1},{"b":2}]', b"0")
    second = await cell.take_one()
    assert second.untold == "t1 "
    await cell.reap(holder="w1", crash_limit=1)
    assert "journal" not in (await cell.turn("t2")).fields
    third = await cell.started("t3")
    assert third.untold == "t1 ", "the second had done nothing"
    await cell.end(third)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_a_turn_has_used_counts_although_no_worker_can_end_it(cancelled, cell):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"{}"], bodies=[], usage=b"so much")
    if cancelled:
        await cell.cancel(turn.turn_id, "enough")
    await cell.reap(holder="w1", crash_limit=1)
    assert await cell.status() == ("cancelled" if cancelled else "failed")
    assert await cell.redis.hget("ant:session:s", "usage") == b"so much"


async def test_a_turn_that_was_cancelled_in_rq_and_whose_workers_die_ends_as_cancelled(cell):
    await cell.started("t1")
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    await cell.wait(LEASE_MS)
    assert acts(await cell.reap(crash_limit=1)) == [("s", "t1", "cancelled")]
    record = await cell.turn("t1")
    assert (record.status, record.error, record.error_code) == ("cancelled", "cancelled in RQ", "")
