"""The scripts of budgets: their ledgers, and the turns that wait for them. A memory cell must do the same."""

import json
import random
from datetime import UTC, datetime

import pytest

from antiphon.errors import StoreError
from antiphon.model import Budget
from antiphon.model.budget import NANO
from antiphon.wire.budgets import (
    Busy,
    Call,
    Outdated,
    Payer,
    Reached,
    Reserved,
    Unpriced,
    capture,
    ledgers_of,
    note_waiting,
    read_ledgers,
    reserve,
    wake_waiting,
    window_end,
    write_budgets,
)
from antiphon.wire.records import NewTurn
from antiphon_worker.local.cell import MemoryCell

CENT = NANO // 100
ACME = Payer("tenant", "acme", (Budget(cost=1, per="day"),))


def call(turn="t1", fence=1, number=1, cost=10 * CENT, tokens=100, session="s1", lasts_ms=60_000):
    return Call(turn, session, f"{fence}-x", number, cost, tokens, lasts_ms)


async def ask(cell, one, *payers, **options):
    return await reserve(cell, one, [(payer, "all") for payer in payers or (ACME,)], **options)


async def spent(cell, ledger="tenant:day:acme"):
    if isinstance(cell, MemoryCell):
        return {name.encode(): value for name, value in cell.transitions.spent.get(ledger, {}).items()}
    return await cell.redis.hgetall(cell.keys.spent(ledger))


async def used(cell, ledger="tenant:day:acme"):
    found = await spent(cell, ledger)
    return [int(found.get(name, 0)) for name in (b"cost", b"held_cost")]


async def test_what_is_held_is_settled(cell):
    assert await ask(cell, call()) == Reserved(["tenant:day:acme"])
    assert await used(cell) == [0, 10 * CENT]
    for _ in range(2):
        await capture(cell, call(), ["tenant:day:acme"], cost=3 * CENT, tokens=30)
        assert await used(cell) == [3 * CENT, 0]


async def test_a_repetition_holds_nothing_twice(cell):
    for _ in range(3):
        assert await ask(cell, call()) == Reserved(["tenant:day:acme"])
    assert await used(cell) == [0, 10 * CENT]


async def test_the_ledgers_of_a_call_are_found_and_nothing_is_held(cell):
    everything = [(ACME, "all")]
    assert await ledgers_of(cell, call(), everything) == ["tenant:day:acme"]
    assert await spent(cell) == {}
    await ask(cell, call(fence=2))
    before = await spent(cell)
    for fence in (1, 2, 3):
        assert await ledgers_of(cell, call(fence=fence), everything) == ["tenant:day:acme"]
        assert await spent(cell) == before, "a call of another attempt goes on"


async def test_who_finds_no_room_learns_of_calls_in_batches_whose_turns_are_in_other_cells(cell):
    """A call of a turn of this cell counts as used once the turn has ended. The worker looks at the others."""
    batched = [call(f"t{n}", cost=30 * CENT)._replace(fence=f"1~{n}", session_id="away") for n in range(3)]
    await cell.started("t2", "s2")
    for one in (*batched, call("usual", cost=CENT, session="away")):
        assert isinstance(await ask(cell, one), Reserved)
    answer = await ask(cell, call("t9", cost=50 * CENT))
    assert isinstance(answer, Busy)
    assert answer.ledger == "tenant:day:acme"
    assert {(one.turn_id, one.fence, one.number, one.cost, one.tokens) for one in answer.away} == {
        ("t0", "1~0", 1, 30 * CENT, 100), ("t1", "1~1", 1, 30 * CENT, 100),
    }  # fmt: skip


async def test_who_finds_no_room_learns_of_a_hundred_calls_at_once(cell):
    for number in range(101):
        one = call(f"t{number}", cost=CENT // 2)._replace(fence=f"1~{number}", session_id="away")
        assert isinstance(await ask(cell, one), Reserved)
    assert len((await ask(cell, call("t999", cost=NANO))).away) == 100


async def test_calls_that_do_not_fit_wait_and_the_last_one_may_exceed(cell):
    assert isinstance(await ask(cell, call("t1", cost=90 * CENT)), Reserved)
    assert await ask(cell, call("t2", cost=11 * CENT)) == Busy()
    assert isinstance(await ask(cell, call("t3", cost=10 * CENT)), Reserved)
    await capture(cell, call("t1"), ["tenant:day:acme"], cost=89 * CENT, tokens=1)
    await capture(cell, call("t3"), ["tenant:day:acme"], cost=10 * CENT, tokens=1)
    assert isinstance(await ask(cell, call("t2", cost=500 * CENT)), Reserved), "nothing else goes on"
    assert await ask(cell, call("t4", cost=0)) == Busy()
    await capture(cell, call("t2"), ["tenant:day:acme"], cost=400 * CENT, tokens=1)
    answer = await ask(cell, call("t4", cost=0))
    assert isinstance(answer, Reached)
    assert (answer.action, answer.scope, answer.per, answer.limit, answer.used) == (
        "reject",
        "tenant",
        "day",
        1.0,
        4.99,
    )
    assert 0 < answer.ms <= 86_400_000


async def test_a_call_holds_in_all_budgets_or_in_none(cell):
    await write_budgets(cell, "user", "alice", [Budget(tokens=50, per="month")])
    alice = Payer("user", "alice")
    assert isinstance(await ask(cell, call("t1", tokens=40), alice), Reserved)
    assert await ask(cell, call("t2", tokens=40), ACME, alice) == Busy()
    assert await spent(cell) == {}


async def test_stored_budgets_take_the_place_of_declared_ones(cell):
    await write_budgets(cell, "tenant", "", [Budget(cost=9, per="month")])
    assert await ask(cell, call("t1")) == Reserved(["tenant:day:acme"])
    assert await ask(cell, call("t2"), Payer("tenant", "b")) == Reserved(["tenant:month:b"])
    await write_budgets(cell, "tenant", "acme", [Budget(cost=9, per="session")])
    assert await ask(cell, call("t3")) == Reserved(["session::s1"])
    await write_budgets(cell, "tenant", "acme", [])
    assert await ask(cell, call("t4")) == Reserved([]), "none at all"


async def test_a_model_without_a_price_is_refused_by_budgets_of_cost_alone(cell):
    assert await ask(cell, call(cost=None)) == Unpriced()
    tokens = Payer("tenant", "acme", (Budget(tokens=200),))
    for turn in ("t1", "t2"):
        free = call(turn, cost=None)
        assert isinstance(await ask(cell, free, tokens), Reserved)
        await capture(cell, free, ["tenant:day:acme"], cost=0, tokens=90)
    assert (await spent(cell))[b"tokens"] == b"180"
    assert await used(cell) == [0, 0]


async def test_the_next_attempt_counts_what_the_former_one_held(cell):
    await ask(cell, call(fence=1))
    assert isinstance(await ask(cell, call(fence=2, cost=20 * CENT)), Reserved)
    assert await used(cell) == [10 * CENT, 20 * CENT]
    assert (await spent(cell))[b"estimated_cost"] == str(10 * CENT).encode()
    await capture(cell, call(fence=1), ["tenant:day:acme"], cost=5, tokens=1)
    assert await used(cell) == [10 * CENT, 20 * CENT], "the former call has been estimated"


async def test_a_worker_that_was_paused_reserves_nothing_after_the_next_attempt(cell):
    await ask(cell, call(fence=2))
    assert await ask(cell, call(fence=1, number=2)) == Outdated()
    assert await used(cell) == [0, 10 * CENT]


async def test_the_call_of_a_turn_that_has_ended_makes_room(cell):
    await cell.submit(NewTurn("s1", "t1", b"{}", "d"))
    turn = await cell.take_one()
    one = Call("t1", "s1", turn.fence, 1, 100 * CENT, 1, 60_000)
    await ask(cell, one)
    assert await ask(cell, call("t2", session="s2")) == Busy(), "its turn is held under this fence"
    await cell.reap(holder="w1")
    answer = await ask(cell, call("t2", session="s2"))
    assert isinstance(answer, Reached), "it is estimated with all that it held"
    assert answer.used == 1.0


async def test_a_call_is_held_for_so_long_at_most(cell):
    await ask(cell, call("elsewhere", cost=99 * CENT, lasts_ms=5_000))
    await cell.wait(5_000)
    assert await ask(cell, call("t2")) == Busy()
    await cell.wait(1)
    assert isinstance(await ask(cell, call("t2")), Reserved)
    assert await used(cell) == [99 * CENT, 10 * CENT]


async def test_fallbacks_are_counted_and_not_held(cell):
    payer = Payer("tenant", "acme", (Budget(cost=0.5, reached="fallback"), Budget(cost=1)))
    await ask(cell, call("t1", cost=60 * CENT), payer)
    await capture(cell, call("t1"), ["tenant:day:acme"], cost=60 * CENT, tokens=1)
    answer = await ask(cell, call("t2"), payer)
    assert isinstance(answer, Reached)
    assert answer.action == "fallback"
    assert isinstance(await ask(cell, call("t2"), payer, switched=True), Reserved)
    await capture(cell, call("t2"), ["tenant:day:acme"], cost=60 * CENT, tokens=1)
    answer = await ask(cell, call("t3"), payer, switched=True)
    assert isinstance(answer, Reached)
    assert answer.action == "reject"


@pytest.mark.parametrize("per", ["day", "month"])
async def test_a_new_window_begins_with_nothing(cell, per):
    payer, ledger = Payer("tenant", "acme", (Budget(cost=1, per=per),)), f"tenant:{per}:acme"
    await ask(cell, call("t1"), payer)
    await capture(cell, call("t1"), [ledger], cost=100 * CENT, tokens=1)
    answer = await ask(cell, call("t2"), payer)
    assert isinstance(answer, Reached)
    (state,) = await read_ledgers(cell, [(ledger, payer.own[0])])
    assert state.used == 1.0
    await cell.wait(answer.ms - 1)
    assert isinstance(await ask(cell, call("t2"), payer), Reached)
    await cell.wait(1)
    assert isinstance(await ask(cell, call("t2"), payer), Reserved)
    assert await used(cell, ledger) == [0, 10 * CENT]


@pytest.mark.parametrize(
    ("begun", "ends"),
    [("2026-01-01", "2026-02-01"), ("2024-02-01", "2024-03-01"), ("2026-12-01", "2027-01-01")],
)
def test_months_have_their_lengths(begun, ends):
    def ms(day):
        return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)

    assert window_end("month", ms(begun)) == ms(ends)
    assert window_end("day", ms(begun)) == ms(begun) + 86_400_000


async def test_a_damaged_ledger_is_named(cell):
    await cell.redis.hset(cell.keys.spent("tenant:day:acme"), mapping={"cost": "many"})
    await cell.redis.expire(cell.keys.spent("tenant:day:acme"), 60)
    with pytest.raises(StoreError, match="cost of the ledger tenant:day:acme"):
        await ask(cell, call())


async def test_a_damaged_turn_that_holds_a_part_keeps_no_other_from_its_call(cell):
    if isinstance(cell, MemoryCell):
        pytest.skip("its turns cannot be damaged")
    assert await ask(cell, call(cost=90 * CENT))
    await cell.redis.set(cell.keys.turn("t1"), "x", ex=60)
    assert await ask(cell, call("t2", cost=50 * CENT, session="s2")) == Busy()
    assert await ask(cell, call("t2", cost=5 * CENT, session="s2")) == Reserved(["tenant:day:acme"])


async def test_every_ledger_has_its_ttl(cell):
    per = [Budget(cost=9, per=one) for one in ("turn", "session", "day", "month")]
    await ask(cell, call(), Payer("tenant", "acme", tuple(per)))
    days = {
        name: await cell.redis.pttl(cell.keys.spent(name)) / 86_400_000
        for name in ("turn:t1", "session::s1", "tenant:day:acme", "tenant:month:acme")
    }
    assert 39 < days["turn:t1"] <= 40
    assert 30 < days["session::s1"] < 30.1
    assert 1 <= days["tenant:day:acme"] <= 2
    assert 28 <= days["tenant:month:acme"] <= 62


@pytest.mark.parametrize("seed", range(2))
async def test_a_thousand_parallel_turns_exceed_a_dollar_by_one_call(cell, seed):
    """At any moment what is used and held exceeds the budget by less than a call, and so does what was really billed.

    Turns reserve, are billed less than they reserved, settle, or die and are tried again, in any order. A memory cell
    does the same.
    """
    rng = random.Random(seed)
    memory = MemoryCell()
    memory.transitions.clock = lambda: cell_now
    payer = Payer("tenant", "acme", (Budget(cost=1), Budget(tokens=10**9, per="month")))
    fences, running, billed, most, ended = {}, {}, 0, 0, 0
    waiting = [f"t{n}" for n in range(1000)]
    cell_now = int((await cell.redis.time())[0]) * 1000
    while waiting or running:
        if waiting and (not running or rng.random() < 0.6):
            turn = waiting.pop(rng.randrange(len(waiting)))
            fences[turn] = fences.get(turn, 0) + 1
            one = call(turn, fence=fences[turn], cost=rng.randint(1, 20) * CENT, session=turn)
            answer = await ask(cell, one, payer)
            assert _form(answer) == _form(await ask(memory, one, payer))
            if isinstance(answer, Reserved):
                running[turn] = one, answer.ledgers
                most = max(most, one.cost)
            elif isinstance(answer, Busy):
                waiting.append(turn)
            else:
                ended += 1
        elif running:
            turn = rng.choice(list(running))
            one, ledgers = running.pop(turn)
            cost = rng.randint(0, one.cost)
            billed += cost
            if rng.random() < 0.2:  # killed after the service has billed it, before it was settled
                waiting.append(turn)
                continue
            for each in (cell, memory):
                await capture(each, one, ledgers, cost=cost, tokens=7)
        now_used, held = await used(cell)
        assert [now_used, held] == await used(memory)
        assert now_used + held < NANO + most
        assert billed < NANO + most
    assert ended > 500
    assert (await used(cell))[0] >= NANO


def _form(answer):
    return answer._replace(ms=0) if isinstance(answer, Reached) else answer


async def test_the_ledgers_of_sessions_are_apart_whatever_their_names(cell):
    day, session = (Payer("session", "s1", (Budget(cost=1, per=per),)) for per in ("day", "session"))
    first = await ask(cell, call("t1"), day)
    second = await ask(cell, call("t2", session="day:s1"), session)
    assert isinstance(first, Reserved)
    assert isinstance(second, Reserved)
    assert first.ledgers != second.ledgers


async def kept_from_going_on(cell, turn="t1", *, scope="tenant", name="acme", noted=True):
    """A turn that is given back because a budget is used up."""
    claimed = await cell.started(turn, f"of-{turn}")
    if noted:
        assert await note_waiting(cell, held_by(claimed), scope, name)
    await cell.give_back(claimed, "limit", delay_ms=600_000, code="budget_reached")
    return claimed


def held_by(turn):
    return Call(turn.turn_id, turn.session_id, turn.fence, 1, 0, 0, 60_000)


@pytest.mark.parametrize(
    ("scope", "name", "wakes"),
    [
        ("tenant", "acme", True),
        ("tenant", "", True),
        ("tenant", "acm", False),
        ("user", "acme", False),
        ("user", "", False),
    ],
)
async def test_a_change_of_a_budget_wakes_the_turns_of_its_scope(cell, scope, name, wakes):
    await kept_from_going_on(cell)
    assert await cell.status() == "retrying"
    for _ in range(2):
        await wake_waiting(cell, scope, name)
        assert await cell.status() == ("queued" if wakes else "retrying")
        assert await cell.queue() == ["t1"] * wakes
    assert await cell.redis.zcard(cell.keys.unfunded) == (not wakes)


async def test_a_budget_that_changes_before_the_turn_is_given_back_wakes_it_then(cell):
    claimed = await cell.started("t1")
    for _ in range(2):
        assert await note_waiting(cell, held_by(claimed), "tenant", "acme")
    await wake_waiting(cell, "tenant", "acme")
    assert await cell.status() == "running"
    await cell.give_back(claimed, "limit", delay_ms=600_000, code="budget_reached")
    assert await cell.status() == "queued"
    assert (await cell.events("s"))[-1]["retry_at"] == await cell.now()


async def test_only_a_turn_that_waits_for_a_budget_is_woken(cell):
    busy = await cell.started("t1", "s1")
    await note_waiting(cell, held_by(busy), "tenant", "acme")
    await cell.give_back(busy, "error", delay_ms=5_000, code="provider_overloaded")
    ended = await kept_from_going_on(cell, "t2")
    await cell.cancel(ended.turn_id, "")
    gone = await kept_from_going_on(cell, "t3")
    await cell.redis.delete(cell.keys.turn("t3"))
    await wake_waiting(cell, "tenant", "acme")
    assert [await cell.status(turn) for turn in ("t1", "t2")] == ["retrying", "cancelled"]
    assert await cell.queue() == []
    assert await cell.redis.exists(cell.keys.unfunded, cell.keys.turn(gone.turn_id)) == 0


async def test_a_worker_whose_turn_has_gone_on_elsewhere_notes_nothing(cell):
    claimed = await cell.started("t1")
    await cell.reap(holder="w1")
    assert not await note_waiting(cell, held_by(claimed), "tenant", "acme")
    assert not await cell.redis.exists(cell.keys.unfunded)


async def test_any_number_of_turns_are_woken_and_old_notes_go(cell, monkeypatch):
    monkeypatch.setattr("antiphon.wire.budgets.WOKEN_AT_ONCE", 2)
    await kept_from_going_on(cell, "old")
    await cell.wait(3_600_000)
    turns = [f"t{number}" for number in range(5)]
    for number, turn in enumerate(turns):
        await cell.wait(1)
        await kept_from_going_on(cell, turn, name="acme" if number % 2 else "other")
    assert await cell.redis.zrange(cell.keys.unfunded, 0, -1) == [turn.encode() for turn in turns]
    assert 0 < await cell.redis.pttl(cell.keys.unfunded) <= 3_600_000
    await wake_waiting(cell, "tenant", "acme")
    assert sorted(await cell.queue()) == ["t1", "t3"]
    await wake_waiting(cell, "tenant", "")
    assert sorted(await cell.queue()) == turns


async def test_a_damaged_turn_keeps_no_other_from_waking(cell):
    for turn in ("t1", "t2"):
        await kept_from_going_on(cell, turn)
    await cell.redis.rename(cell.keys.inbox("of-t1"), "kept")
    await cell.redis.hset(cell.keys.inbox("of-t1"), "x", "y")
    await wake_waiting(cell, "tenant", "acme")
    assert await cell.queue() == ["t2"]
    await cell.redis.rename("kept", cell.keys.inbox("of-t1"))


async def test_a_memory_cell_wakes_turns_as_redis_does():
    memory = MemoryCell()
    for turn in ("t1", "t2", "t3"):
        await memory.submit(NewTurn(turn, turn, b"{}", "d", queue="antiphon"))
        claims = await memory.claim("w", turn, lease_ms=1000, limit=1, queues=["antiphon"], only=turn)
        (claimed,) = claims.turns
        assert await note_waiting(memory, held_by(claimed), "tenant", "other" if turn == "t3" else "acme")
        if turn == "t2":
            await wake_waiting(memory, "tenant", "acme")
        await memory.give_back(claimed, "limit", delay_ms=600_000, reason="", code="budget_reached")
        said = json.loads(memory.transitions.sessions[turn].events[-1][1])
        assert said["retry_at"] - said["at"] == (0 if turn == "t2" else 600_000)
        assert not await note_waiting(memory, held_by(claimed), "tenant", "acme")
    assert [(await memory.turn(turn)).status for turn in ("t1", "t2", "t3")] == [
        "queued",
        "queued",
        "retrying",
    ]


DAYS = ("2024-02-29", "2026-01-01", "2026-12-31", "2027-03-01", "2100-02-28", "2100-03-01", "2400-02-29")


@pytest.mark.parametrize("per", ["day", "month"])
@pytest.mark.parametrize("day", DAYS)
async def test_a_ledger_begins_with_its_day_or_month(cell, per, day):
    now = datetime.fromisoformat(f"{day}T23:59:59").replace(tzinfo=UTC)
    await cell.set_clock(int(now.timestamp() * 1000))
    await ask(cell, call(), Payer("tenant", "acme", (Budget(cost=1, per=per),)))
    begun = now.replace(hour=0, minute=0, second=0)
    begun = begun.replace(day=1) if per == "month" else begun
    found = await spent(cell, f"tenant:{per}:acme")
    assert int(found[b"from"]) == int(begun.timestamp() * 1000)


@pytest.mark.parametrize(
    ("budgets", "says"),
    [
        (("suspend", "reject"), "reject"),
        (("reject", "suspend"), "reject"),
        (("fallback", "suspend"), "suspend"),
        (("suspend", "fallback"), "suspend"),
    ],
)
async def test_of_several_budgets_that_are_reached_the_strictest_decides(cell, budgets, says):
    pers = zip(budgets, ("day", "month"), strict=True)
    payer = Payer("tenant", "acme", tuple(Budget(tokens=1, per=per, reached=one) for one, per in pers))
    memory = MemoryCell()
    for each in (cell, memory):
        first = await ask(each, call("t1"), payer)
        await capture(each, call("t1"), first.ledgers, cost=0, tokens=5)
        assert (await ask(each, call("t2"), payer)).action == says


@pytest.mark.parametrize(
    ("part", "ledgers"),
    [
        ("inner", ["turn:t1", "session::s1"]),
        ("outer", ["tenant:day:acme"]),
        ("all", ["turn:t1", "session::s1", "tenant:day:acme"]),
    ],
)
async def test_a_cell_holds_the_ledgers_of_its_part(cell, part, ledgers):
    payer = Payer("tenant", "acme", tuple(Budget(cost=1, per=per) for per in ("turn", "session", "day")))
    for each in (cell, MemoryCell()):
        assert await reserve(each, call(), [(payer, part)]) == Reserved(ledgers)


async def test_waking_ends_where_many_turns_were_noted_at_one_time(cell):
    await cell.redis.zadd("ant:unfunded", {f"t{number}": 5 for number in range(3)})
    await cell.redis.expire("ant:unfunded", 60)
    for number in range(3):
        await cell.redis.hset(f"ant:turn:t{number}", "unfunded", "user another")
        await cell.redis.expire(f"ant:turn:t{number}", 60)
    since, calls = "-inf", 0
    while since and calls < 10:
        (_, after) = await cell.run("budgets/wake", "user one", since, 1)
        since, calls = after.decode(), calls + 1
    assert since == ""


@pytest.mark.parametrize("per", ["day", "month"])
async def test_a_clock_that_jumps_over_midnight_gives_no_budget_twice(cell, per):
    """Redis counts the time. Where its clock goes back, what was used of the later day or month stays used."""
    payer, ledger = Payer("tenant", "acme", (Budget(cost=1, per=per),)), f"tenant:{per}:acme"
    before = int(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() * 1000)
    billed, memory = {before: 0, before + 2_000: 0}, MemoryCell()
    for number in range(60):
        at = [*billed][number // 7 % 2]
        await cell.set_clock(at)
        memory.transitions.clock = lambda at=at: at
        one = call(f"t{number}", cost=10 * CENT)
        answer = await ask(cell, one, payer)
        assert answer == await ask(memory, one, payer)
        if isinstance(answer, Reserved):
            for each in (cell, memory):
                await capture(each, one, [ledger], cost=10 * CENT, tokens=1)
            billed[at] += 10 * CENT
    assert (
        sum(billed.values()) == NANO + 70 * CENT
    )  # all that the first one had begun, and one whole budget after it


@pytest.mark.parametrize("per", ["day", "month"])
@pytest.mark.parametrize("another", [True, False], ids=["after another call", "first"])
async def test_a_call_that_goes_on_when_its_month_ends_is_one_of_the_old_month(cell, per, another):
    """The new day or month begins with nothing held and nothing used, whichever call is settled in it."""
    payer, ledger = Payer("tenant", "acme", (Budget(cost=1, per=per),)), f"tenant:{per}:acme"
    before = int(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() * 1000)
    memory = MemoryCell()
    now = [before]
    memory.transitions.clock = lambda: now[0]
    await cell.set_clock(before)
    for each in (cell, memory):
        await ask(each, call("t1", cost=90 * CENT), payer)
    now[0] += 2_000
    await cell.wait(2_000)
    for each in (cell, memory):
        if another:
            assert isinstance(await ask(each, call("t2", cost=10 * CENT), payer), Reserved)
        await capture(each, call("t1"), [ledger], cost=90 * CENT, tokens=1)
        assert isinstance(await ask(each, call("t3", cost=90 * CENT), payer), Reserved)
        assert await used(each, ledger) == [0, (100 if another else 90) * CENT]
        await capture(each, call("t3"), [ledger], cost=90 * CENT, tokens=1)
        assert await used(each, ledger) == [90 * CENT, 10 * CENT if another else 0]
