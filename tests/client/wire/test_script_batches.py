"""`batches/*`: a model step goes into one batch, and its answer reaches its turn once."""

import pytest
from support.cells import body

from antiphon.errors import CorruptRecord
from antiphon.model import OpenCall, Wait
from antiphon.wire.batches import (
    ANSWER,
    ERROR,
    KEPT_MS,
    UNSURE,
    Group,
    collect,
    deliver,
    leave,
    note,
    providers_with_batches,
    requests_of,
    take_batch,
)
from antiphon.wire.suspension import claimed_decisions

GROUP = Group("openai", "/responses", "m")
LEASE_MS = 60_000
WAIT = Wait("", "batch#1", "batch", seconds=3600.0)


async def put_in(cell, turn, step="step-1", *, group=GROUP, seconds=60.0, size=3, request=b'{"model":"m"}'):
    return await collect(
        cell, turn, step, WAIT.id, group, request, seconds=seconds, size=size, lasts=WAIT.seconds
    )


async def taken(cell, label="label", *, providers=("openai",), size=3):
    found, _ = await take_batch(cell, label, providers, lease_ms=LEASE_MS, size=size)
    return found


async def asked(cell, turn="t1", session="s", step="step-1", **options):
    """A turn that waits for a batch."""
    claimed = await cell.started(turn, session)
    assert await put_in(cell, claimed, step, **options)
    await cell.hold(claimed, WAIT)
    return claimed


async def received(cell):
    """What the next attempt at the turn receives."""
    decision = claimed_decisions(await cell.take_one())[WAIT.id]
    return decision.arguments


async def test_a_step_is_sent_when_it_is_due_and_its_answer_continues_the_turn(cell):
    await asked(cell)
    assert await taken(cell) is None, "others may join it for a minute"
    await cell.wait(60_000)
    batch = await taken(cell)
    assert (batch.name, batch.group, batch.steps, batch.sending) == ("label", GROUP, ["step-1"], 0)
    assert await requests_of(cell, batch.steps) == [("step-1", b'{"model":"m"}')]
    assert await note(cell, batch, "sent", "batch_1")
    assert (await cell.take()).turns == []
    assert await deliver(cell, "step-1", answer='{"text":"Hello"}') == "DELIVERED"
    assert (await cell.events())[-1]["type"] == "turn_resumed"
    assert (await cell.events())[-1]["decisions"] == [], "no reader sees the answer before the turn has it"
    assert await received(cell) == {ANSWER: '{"text":"Hello"}'}


async def test_steps_of_one_provider_and_model_are_sent_together_as_soon_as_there_are_enough(cell):
    for number in range(3):
        await asked(cell, f"t{number}", f"s{number}", f"step-{number}")
    await asked(cell, "t3", "s3", "step-3", group=GROUP._replace(model="other"))
    batch = await taken(cell)
    assert batch.steps == ["step-0", "step-1", "step-2"]
    assert await taken(cell, "second") is None
    await cell.wait(60_000)
    assert await note(cell, batch, "later", seconds=100.0)
    assert (await taken(cell, "second")).group.model == "other"


async def test_only_a_worker_of_the_same_account_takes_the_batch_of_a_step_or_makes_it(cell):
    await asked(cell, group=GROUP._replace(account="4f5e"), seconds=0.0)
    await cell.wait(1)
    for others in ((), ("openai",), ("openai other",), ("anthropic 4f5e",)):
        assert await taken(cell, providers=others) is None
    assert await providers_with_batches(cell) == {"openai"}
    batch = await taken(cell, providers=("openai other", "openai 4f5e"))
    assert batch.group.account == "4f5e"
    await note(cell, batch, "later")
    await cell.wait(1)
    assert await taken(cell, providers=("openai", "openai other")) is None
    assert await providers_with_batches(cell) == {"openai"}
    assert (await taken(cell, providers=("openai 4f5e",))).name == batch.name


async def test_a_batch_has_no_more_steps_than_its_size_and_the_rest_follow(cell):
    for number in range(5):
        await asked(cell, f"t{number}", f"s{number}", f"step-{number}", size=100)
    await cell.wait(60_000)
    assert [len((await taken(cell, f"b{n}", size=2)).steps) for n in range(3)] == [2, 2, 1]
    assert await taken(cell, "b4", size=2) is None


async def test_a_batch_has_no_more_bytes_than_its_service_takes_but_always_one_step(cell):
    for number in range(4):
        await asked(cell, f"t{number}", f"s{number}", f"step-{number}", request=b"x" * 100)
    await cell.wait(60_000)
    steps = []
    for label in ("b1", "b2", "b3", "b4"):
        most = 50 if label == "b1" else 250
        answer = await cell.run("batches/take", label, LEASE_MS, 10, most, KEPT_MS, "openai")
        steps.append(len(answer[5]) if answer[0] == b"TAKEN" else 0)
    assert steps == [1, 2, 1, 0]


async def test_the_requests_of_ended_turns_go_when_a_batch_is_made_and_when_it_is_taken(cell):
    for number in range(3):
        await asked(cell, f"t{number}", f"s{number}", f"step-{number}", size=100)
    await end(cell, "t0")
    await cell.wait(60_000)
    assert (await taken(cell, "label", size=2)).all_steps == {"step-1"}
    assert await steps_kept(cell) == {"step-1", "step-2"}
    await end(cell, "t1")
    await cell.wait(LEASE_MS)
    assert (await taken(cell, "label")).steps == []
    assert await steps_kept(cell) == {"step-2"}


async def test_what_is_left_of_a_batch_that_is_over_goes_with_it(cell):
    await asked(cell, seconds=0.0)
    batch = await taken(cell)
    await note(cell, batch, "over")
    assert await steps_kept(cell) == set()
    assert [key async for key in cell.redis.scan_iter(match=f"{cell.keys.prefix}:batch*")] == []


async def test_a_batch_that_has_expired_is_no_longer_looked_at(cell):
    await asked(cell, seconds=0.0)
    await taken(cell)
    await cell.redis.delete(cell.keys.batch("label"), cell.keys.batch_steps("label"))
    await cell.wait(LEASE_MS)
    assert await taken(cell, "second") is None
    assert not await cell.redis.exists(cell.keys.batches)


async def end(cell, turn):
    await cell.cancel(turn, "stop")
    await cell.finish(await cell.take_one(), "cancelled", bodies=[body("turn_cancelled")])


async def steps_kept(cell):
    found = [key async for key in cell.redis.scan_iter(match=cell.keys.batch_step("*"))]
    return {key.decode().rpartition(":")[2] for key in found}


async def test_collecting_again_changes_nothing(cell):
    claimed = await cell.started("t1")
    await put_in(cell, claimed)
    before = await cell.contents()
    await put_in(cell, claimed, request=b"another")
    assert await cell.contents() == before


async def test_a_worker_that_lost_its_turn_collects_nothing(cell):
    claimed = await cell.started("t1")
    await cell.reap_after(20_000)
    assert not await put_in(cell, claimed)
    assert await taken(cell) is None


async def test_one_worker_holds_a_batch_and_the_next_one_takes_it_after_the_lease(cell):
    await asked(cell, seconds=0.0)
    first = await taken(cell)
    assert await taken(cell, "second") is None
    await cell.wait(LEASE_MS)
    second = await taken(cell, "second")
    assert second.name == first.name
    assert second.fence != first.fence
    assert not await note(cell, first, "sent", "batch_of_the_first")
    assert await note(cell, second, "sent", "batch_2", seconds=1.0)
    await cell.wait(1_000)
    assert (await taken(cell)).service_id == "batch_2"


async def test_a_batch_that_the_service_refused_for_now_is_sent_again_under_another_label(cell):
    await asked(cell, seconds=0.0)
    first = await taken(cell)
    await note(cell, first, "sending", 1)
    await note(cell, first, "sent", "batch_1")
    await note(cell, first, "again", seconds=5.0)
    await cell.wait(5_000)
    second = await taken(cell)
    assert (second.service_id, second.sending) == ("", 0)
    assert second.label != first.label
    assert await requests_of(cell, second.steps) == [("step-1", b'{"model":"m"}')]


async def test_the_number_of_requests_is_known_before_they_are_sent(cell):
    """By it, the next worker finds a batch whose worker has died."""
    await asked(cell, seconds=0.0)
    await asked(cell, "t2", "s2", "step-2", seconds=0.0)
    batch = await taken(cell)
    assert batch.created == await cell.now()
    await note(cell, batch, "sending", 2)
    await note(cell, batch, "later")
    await cell.wait(1)
    again = await taken(cell)
    assert (again.sending, again.service_id, again.label) == (2, "", batch.label)
    await note(cell, again, "again")
    await cell.wait(1)
    assert (await taken(cell)).label == batch.label, "nothing was refused: it may have been sent"


async def test_batches_that_were_found_to_be_others_are_known(cell):
    await asked(cell, seconds=0.0)
    batch = await taken(cell)
    for other in ("msgbatch_1", "msgbatch_2"):
        await note(cell, batch, "sent", UNSURE + other)
        for _ in range(2):
            await note(cell, batch, "another", other)
    await cell.wait(1)
    again = await taken(cell)
    assert (again.service_id, again.others) == ("", {"msgbatch_1", "msgbatch_2"})
    assert (await cell.redis.hget(cell.keys.batch("label"), "others")).split() == [
        b"msgbatch_1",
        b"msgbatch_2",
    ]


async def test_answers_of_a_service_that_cannot_be_read_are_counted(cell):
    await asked(cell, seconds=0.0)
    batch = await taken(cell)
    await note(cell, batch, "unread")
    await note(cell, batch, "unread", seconds=5.0)
    assert await taken(cell, "second") is None
    await cell.wait(5_000)
    assert (batch.unread, (await taken(cell)).unread) == (0, 2)


async def test_a_batch_that_no_turn_needs_is_forgotten_after_its_time_whatever_its_service_answers(cell):
    await asked(cell, seconds=0.0)
    await asked(cell, "t2", "s2", "step-2", seconds=0.0, group=GROUP._replace(model="other"))
    one, two = await taken(cell), await taken(cell, "second")
    assert one.all_steps == {"step-1"}
    await deliver(cell, "step-1", answer="{}")
    for batch in (one, two):
        await note(cell, batch, "later")
        for key in (cell.keys.batch(batch.name), cell.keys.batch_steps(batch.name), cell.keys.batches):
            await cell.redis.pexpire(key, 60_000)
    await cell.wait(1)
    found = {batch.name: batch for batch in (await taken(cell, "x"), await taken(cell, "y"))}
    assert (found["label"].steps, found["label"].all_steps) == ([], {"step-1"})
    assert found["second"].steps == ["step-2"]
    for key in (cell.keys.batch("label"), cell.keys.batch_steps("label")):
        assert 0 < await cell.redis.pttl(key) <= 60_000
    for key in (cell.keys.batch("second"), cell.keys.batch_steps("second"), cell.keys.batches):
        assert await cell.redis.pttl(key) > 60_000


async def test_a_batch_is_taken_only_by_a_worker_with_its_provider(cell):
    await asked(cell, seconds=0.0)
    assert await taken(cell, providers=("anthropic",)) is None
    batch = await taken(cell)
    await cell.wait(LEASE_MS)
    assert await taken(cell, providers=("anthropic",)) is None
    assert (await taken(cell)).name == batch.name


async def test_the_requests_go_once_the_service_runs_them(cell):
    await asked(cell, seconds=0.0)
    batch = await taken(cell)
    await note(cell, batch, "sent", "batch_1")
    assert await requests_of(cell, batch.steps), "it may refuse them, to be sent again"
    await note(cell, batch, "running")
    assert await requests_of(cell, batch.steps) == []
    assert await deliver(cell, "step-1", answer="{}") == "DELIVERED"


async def test_an_answer_is_delivered_once(cell):
    await asked(cell)
    assert await deliver(cell, "step-1", answer='"first"') == "DELIVERED"
    assert await deliver(cell, "step-1", answer='"second"') == "GONE"
    assert await received(cell) == {ANSWER: '"first"'}


async def test_an_answer_before_the_turn_is_suspended_comes_later(cell):
    claimed = await cell.started("t1")
    await put_in(cell, claimed)
    assert await deliver(cell, "step-1", answer="{}") == "LATER"
    await cell.hold(claimed, WAIT)
    assert await deliver(cell, "step-1", error="expired") == "DELIVERED"
    assert await received(cell) == {ERROR: "expired"}


@pytest.mark.parametrize("aside", [False, True])
async def test_without_an_answer_the_wait_is_over_at_its_time(cell, aside):
    claimed = await cell.started("t1")
    await put_in(cell, claimed)
    await cell.hold(claimed, WAIT, aside=aside)
    assert await cell.reap_after(3_599_000) == []
    await cell.reap_after(1_000)
    assert await received(cell) is None
    assert await deliver(cell, "step-1", answer="{}") == "LATER", "until its turn says that it is too late"
    assert not await leave(cell, "step-1", GROUP)
    assert await deliver(cell, "step-1", answer="{}") == "GONE"


async def test_a_step_that_was_left_is_not_sent(cell):
    await asked(cell)
    assert not await leave(cell, "step-1", GROUP)
    assert not await leave(cell, "step-1", GROUP)
    await cell.wait(60_000)
    assert await taken(cell) is None


async def test_whoever_leaves_a_step_learns_whether_it_was_sent(cell):
    await asked(cell, seconds=0.0)
    await taken(cell)
    assert await leave(cell, "step-1", GROUP)


async def test_what_a_cancelled_turn_asked_for_is_not_sent_and_its_answer_reaches_nothing(cell):
    await asked(cell)
    await asked(cell, "t2", "s2", "step-2")
    await cell.cancel("t1", "stop")
    stopped = await cell.take_one()
    await cell.finish(stopped, "cancelled", bodies=[body("turn_cancelled")])
    await cell.wait(60_000)
    batch = await taken(cell)
    assert batch.steps == ["step-2"]
    assert await deliver(cell, "step-1", answer="{}") == "GONE"
    await cell.cancel("t2", "stop")
    await cell.finish(await cell.take_one(), "cancelled", bodies=[body("turn_cancelled")])
    await cell.wait(LEASE_MS)
    assert (await taken(cell)).steps == [], "nothing waits for the batch any more"


async def test_the_answer_of_a_former_run_reaches_nothing(cell):
    await asked(cell)
    await cell.reap_after(3_600_000)
    await cell.finish(await cell.take_one(), "failed", bodies=[body("turn_failed")])
    await cell.requeue("t1")
    turn = await cell.take_one()
    await cell.hold(turn, WAIT)
    assert await deliver(cell, "step-1", answer="{}") == "GONE"
    assert (await cell.take()).turns == []


async def test_an_answer_reaches_no_other_wait_of_its_turn(cell):
    claimed = await cell.started("t1")
    await put_in(cell, claimed)
    await cell.hold(claimed, Wait("c1", "sleep", seconds=60.0), OpenCall("c2", "pay"))
    assert await steps_kept(cell) == {"step-1"}
    assert await deliver(cell, "step-1", answer="{}") == "GONE"
    assert await steps_kept(cell) == set(), "nobody waits for it"
    assert (await cell.take()).turns == []


async def test_an_answer_finds_its_wait_among_those_of_its_turn(cell):
    claimed = await cell.started("t1")
    await put_in(cell, claimed)
    await cell.hold(claimed, Wait("c1", "sleep", seconds=60.0), WAIT)
    assert await deliver(cell, "step-1", answer="{}") == "DELIVERED"
    await cell.reap_after(60_000)
    assert await received(cell) == {ANSWER: "{}"}


async def test_all_that_is_left_of_batches_expires(cell):
    await asked(cell)
    await asked(cell, "t2", "s2", "step-2", seconds=0.0, group=GROUP._replace(model="other"))
    await taken(cell)
    keys = [key async for key in cell.redis.scan_iter(match=f"{cell.keys.prefix}:batch*")]
    assert len(keys) == 7
    lives = [await cell.redis.pttl(key) for key in keys]
    assert all(0 < life <= KEPT_MS + 3600_000 for life in lives)


async def test_nothing_is_left_of_a_batch_that_is_over(cell):
    await asked(cell, seconds=0.0)
    batch = await taken(cell)
    await deliver(cell, "step-1", answer="{}")
    assert await note(cell, batch, "over")
    assert not await note(cell, batch, "over")
    assert [key async for key in cell.redis.scan_iter(match=f"{cell.keys.prefix}:batch*")] == []


async def test_a_call_that_is_repeated_returns_the_batch_that_it_made(cell):
    """And no steps of another batch with it."""
    for number in range(4):
        await asked(cell, f"t{number}", f"s{number}", f"step-{number}", size=2)
    await asked(cell, "other", "o", "step-o", group=Group("openai", "/responses", "other"))
    await cell.wait(60_000)
    first, again = await taken(cell, "label", size=2), await taken(cell, "label", size=2)
    assert (again.group, again.steps) == (first.group, first.steps) == (GROUP, ["step-0", "step-1"])
    assert again.fence > first.fence
    assert (await taken(cell, "next", size=2)).steps == ["step-2", "step-3"]


async def test_a_step_that_is_left_twice_is_told_to_be_sent_twice(cell):
    """Else what it may cost would not count."""
    await asked(cell, seconds=0.0)
    batch = await taken(cell)
    assert await note(cell, batch, "sent", "b", seconds=0.0)
    assert [await leave(cell, "step-1", GROUP) for _ in range(2)] == [True, True]
    assert await deliver(cell, "step-1", answer='"late"') == "GONE"
    assert (await taken(cell)).steps == []


async def test_a_batch_lasts_as_long_as_it_is_looked_at(cell):
    await asked(cell, seconds=0.0)
    for _ in range(3):
        batch = await taken(cell)
        assert batch.steps == ["step-1"]
        assert await note(cell, batch, "later", seconds=KEPT_MS / 2000)
        await cell.wait(KEPT_MS // 2)


DAMAGED = ["batch:bad", "batch_steps:bad", "batch_step:step-1", "batch_outbox:GROUP", "turn:t1"]


@pytest.mark.parametrize("key", DAMAGED)
async def test_what_is_damaged_of_one_batch_delays_no_other(cell, key):
    """It is an error once a minute, and goes on when it is repaired."""
    await asked(cell, seconds=0.0)
    in_batch = "batch" in key and "outbox" not in key
    if in_batch:
        assert await taken(cell, "bad")
        await cell.wait(LEASE_MS)
    key = f"ant:{key.replace('GROUP', str(GROUP))}"
    whole = await cell.redis.dump(key)
    await cell.redis.set(key, "x", ex=60)
    other = Group("openai", "/responses", "other")
    await asked(cell, "t2", "s2", "step-2", group=other, seconds=0.0)
    good = await taken(cell, "good")
    if not good.steps:  # the batch of the damaged step is over
        assert await note(cell, good, "over")
        good = await taken(cell, "good")
    assert good.steps == ["step-2"]
    assert await note(cell, good, "over")
    await cell.wait(60_000)
    if not key.startswith(("ant:turn:", "ant:batch_step:")):
        with pytest.raises(CorruptRecord):
            await taken(cell, "again")
        await cell.redis.restore(key, 0, whole, replace=True)
        await cell.redis.expire(key, 60)
        await cell.wait(60_000)
        assert (await taken(cell, "last")).steps == ["step-1"]
    await cell.redis.flushdb()
