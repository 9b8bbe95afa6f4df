"""Any key or field of one session is damaged, in any way: the others go on, and the damaged one is set aside visibly.

Every key gets every wrong type or goes; every field gets every kind of junk or goes; in every state that a session can
be in. Which of the many it is this time depends on the commit, as for the simulation.
"""

import random

import pytest
from redis.exceptions import ResponseError
from simulation.seeds import first_seed
from support.cells import LEASE_MS, body, open_cell

from antiphon.errors import AgentError
from antiphon.input.ids import SessionId, TurnId
from antiphon.wire.archiving import Ending, begin_archiving, take_work
from antiphon.wire.errors import CancelledFirst
from antiphon.wire.lists.inspection import not_turns, session_rows
from antiphon.wire.lists.notices import follow
from antiphon.wire.lists.reading import places
from antiphon.wire.records import Emit
from antiphon.wire.scripts import load_script

KEYS = [f"ant:{kind}:bad" for kind in ("session", "inbox", "history", "events", "turns")]
KEYS += ["ant:turn:b1", "ant:journal:b1", "rq:job:b1", "ant:turn:b2"]
JUNK = ["abc", "", "-1", "1.5", "1e999", "nan", b"\xff\xfe", "99999999999999999999"]
STATES = ["queued", "running", "alone", "retrying", "delayed", "idle"]
SAMPLE = 20
MINUTE = 60_000


async def become(cell, state):
    """A session in this state, with a second turn behind the first."""
    await cell.put("b1", "bad", due_in_ms=1000 if state == "delayed" else 0)
    if state == "delayed":
        return
    if state in ("running", "retrying"):
        turn = await cell.take_one("w1")
        await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[body(turn="b1")])
        if state == "retrying":
            await cell.give_back(turn, "error", delay_ms=1000)
    elif state == "alone":
        await cell.redis.hset("ant:turn:b1", "crashes", 2)
        await cell.take("w1")
    elif state == "idle":
        await cell.end(await cell.take_one("w1"), "failed")
    if state != "idle":
        await cell.put("b2", "bad")


async def damages(cell):
    """Every way to damage what there is."""
    ways = []
    for key in KEYS:
        kind = (await cell.redis.type(key)).decode()
        if kind == "none":
            continue
        ways += [(key, other) for other in ("string", "list", "hash", "set", "zset", "gone") if other != kind]
        if kind == "hash":
            fields = [field.decode() for field in await cell.redis.hkeys(key)]
            ways += [(key, field, junk) for field in fields for junk in (*JUNK, None)]
    return ways


async def damage(cell, key, what, junk=""):
    redis = cell.redis
    if what not in ("string", "list", "hash", "set", "zset", "gone"):
        await (redis.hdel(key, what) if junk is None else redis.hset(key, what, junk))
        return
    await redis.delete(key)
    match what:
        case "string":
            await redis.set(key, "x")
        case "list":
            await redis.rpush(key, "x")
        case "hash":
            await redis.hset(key, "x", "y")
        case "set":
            await redis.sadd(key, "x")
        case "zset":
            await redis.zadd(key, {"x": 1})


async def or_refused(call):
    """What touches the damaged session may be refused, with an error of ours."""
    try:
        return await call
    except (AgentError, CancelledFirst):
        return None


async def others_go_on(cell, number):
    """One round of everything for a whole session, while the damaged one is there."""
    good = f"good{number}"
    assert await cell.put(good, good) == 0
    acts = [act.what for act in await cell.reap(queues=["antiphon"])]
    claims = await cell.take("w2")
    turn = next(turn for turn in claims.turns if turn.turn_id == good)
    leases = [(SessionId("bad"), turn.fence), (turn.session_id, turn.fence)]
    assert (await cell.renew("w2", leases, lease_ms=LEASE_MS))[1] == ""
    emitted = await cell.emit([Emit(t.session_id, t.fence, 1, [body(turn=t.turn_id)]) for t in claims.turns])
    assert emitted[claims.turns.index(turn)] == ""
    for one in claims.turns:
        ending = cell.end(one, "cancelled" if one.stop else "finished")
        ended = await (ending if one is turn else or_refused(ending))
        assert ended or one is not turn
    await or_refused(cell.put(f"more{number}", "bad"))
    await or_refused(cell.cancel(TurnId("b1"), "enough"))
    await or_refused(cell.snapshot(SessionId("bad")))
    assert any(row and row.session_id == good for row in await rows(cell))
    await not_turns(cell, 100)
    return acts.count("quarantined") + len(claims.damaged)


async def rows(cell):
    return await session_rows(
        cell, await places(cell, cell.keys.sessions, None, 100), ["tenant", "queue", "metadata"]
    )


@pytest.mark.short
@pytest.mark.one_server
@pytest.mark.lasting_keys("ant:*")
@pytest.mark.parametrize("state", STATES)
async def test_whatever_is_damaged_in_one_session_the_others_go_on(cell, state):
    await become(cell, state)
    ways = await damages(cell)
    sample = random.Random(first_seed()).sample(ways, min(SAMPLE, len(ways)))
    for way in sample:
        await cell.redis.flushdb()
        await cell.set_clock(4_000_000_000_000)
        await become(cell, state)
        await damage(cell, *way)
        said = 0
        for number in range(8):
            said += await others_go_on(cell, number)
            await cell.wait(1000 if number < 4 else MINUTE)
            await cell.reap(holder="w1")
        assert said <= 3, (way, "nothing is said again and again")
    await cell.redis.flushdb()


BROKEN = [
    ("ant:inbox:bad", "string", ""),
    ("ant:session:bad", "list", ""),
    ("ant:journal:b1", "string", ""),
    ("ant:history:bad", "string", ""),
    ("ant:events:bad", "set", ""),
    ("ant:turn:b1", "zset", ""),
    ("ant:turn:b1", "queue", None),
    ("ant:turn:b1", "queue", "two words"),
    ("ant:turn:b1", "run", "abc"),
    ("ant:turn:b1", "errors", "many"),
    ("ant:turn:b1", "status", None),
    ("ant:turn:b1", "session", "another"),
    ("ant:turn:b1", "tail", "1e999"),
    ("ant:session:bad", "seq", "x"),
    ("ant:session:bad", "seq", "99999999999999999999"),
]


@pytest.mark.parametrize("way", BROKEN, ids=lambda way: f"{way[0].split(':')[1]} {way[1]} {way[2]}")
async def test_a_damaged_session_is_set_aside_once_and_goes_on_when_it_is_mended(redis_url, way):
    key, what, junk = way
    async with open_cell(redis_url) as cell:
        await become(cell, "retrying" if key == "ant:journal:b1" else "queued")
        before = await cell.redis.dump(key)
        await damage(cell, key, what, junk)
        said = []
        for _ in range(5):
            claims = await cell.take("w1")
            assert claims.turns == []
            said += [one.session_id for one in claims.damaged]
            said += [act.session_id for act in await cell.reap_after(MINUTE) if act.what == "quarantined"]
        assert said == ["bad"]
        listed = [one for one in await not_turns(cell, 10) if one.code == "quarantined"]
        assert [(one.session_id, bool(one.error), one.ended > 0) for one in listed] == [("bad", True, True)]
        await cell.redis.delete(key)
        if before is not None:
            await cell.redis.restore(key, 0, before)
        await cell.reap_after(MINUTE)
        assert not await cell.redis.exists("ant:quarantined")
        for turn_id in ("b1", "b2"):
            turn = await cell.take_one()
            assert turn.turn_id == turn_id
            assert await cell.end(turn)


@pytest.mark.parametrize("state", ["queued", "delayed"])
async def test_nothing_stays_set_aside_when_the_damaged_turn_has_ended(cell, state):
    await become(cell, state)
    await cell.redis.hset("ant:turn:b1", "crashes", "abc")
    assert [act.what for act in await cell.reap_after(MINUTE)] == ["quarantined"]
    await cell.cancel(TurnId("b1"), "enough")
    if state == "queued":
        await cell.cancel(TurnId("b2"), "enough")
    assert await cell.reap() == []
    assert not await cell.redis.exists("ant:quarantined")


async def test_what_is_mended_and_claimed_before_anybody_has_looked_is_no_longer_set_aside(cell):
    await cell.put("b1", "bad")
    await cell.redis.hset("ant:turn:b1", "crashes", "abc")
    assert [act.what for act in await cell.reap_after(MINUTE)] == ["quarantined"]
    await cell.redis.hset("ant:turn:b1", "crashes", 0)
    assert await cell.end(await cell.take_one())
    assert await cell.reap() == []
    assert not await cell.redis.exists("ant:quarantined")


async def test_a_claim_says_once_what_it_sets_aside(cell):
    await cell.put("b1", "bad")
    await cell.put("g1", "good")
    await cell.redis.hset("ant:turn:b1", "crashes", "abc")
    claims = await cell.take("w1")
    assert [turn.turn_id for turn in claims.turns] == ["g1"]
    assert claims.damaged == [], "what cannot be read is left to the reaper"
    await cell.end(claims.turns[0])
    await cell.redis.hset("ant:turn:b1", "crashes", 0)
    await cell.redis.set("ant:history:bad", "no list")
    await cell.redis.rpush("rq:queue:antiphon", "b1", "b1")
    (damaged,) = (await cell.take("w1")).damaged
    assert (damaged.session_id, damaged.turn_id, "WRONGTYPE" in damaged.reason) == ("bad", "b1", True)
    assert await cell.look_at("bad") == await cell.now() + MINUTE
    await cell.redis.delete("ant:history:bad")
    assert [act.what for act in await cell.reap_after(MINUTE)] == ["repaired"]


async def test_a_delayed_turn_that_has_half_entered_is_looked_at_again(cell):
    await cell.put("b1", "bad", due_in_ms=1000)
    await cell.redis.set("ant:events:bad", "no stream")
    assert [act.what for act in await cell.reap_after(1000)] == ["quarantined"]
    assert await cell.inbox("bad") == ["b1"]
    assert (await cell.look_at("bad"), await cell.redis.zcard("ant:due")) == (
        await cell.now() + MINUTE,
        0,
    )
    await cell.redis.delete("ant:events:bad")
    await cell.redis.hset("ant:session:bad", "seq", 0)
    assert [act.what for act in await cell.reap_after(MINUTE)] == ["repaired"]
    assert await cell.end(await cell.take_one())


async def test_a_lease_that_is_no_number_has_run_out(cell):
    await become(cell, "running")
    await cell.redis.hset("ant:session:bad", "lease", "abc")
    assert [act.what for act in await cell.reap_after(LEASE_MS)] == ["recovered"]


@pytest.mark.parametrize("junk", JUNK)
async def test_times_that_only_tell_for_how_long_set_no_turn_aside(cell, junk):
    await become(cell, "retrying")
    await cell.redis.hset("ant:turn:b1", mapping={"missed_at": junk, "failing": junk, "waited": junk})
    assert [act.what for act in await cell.reap_after(1000)] == ["retried"]
    assert await cell.give_back(await cell.take_one(), "limit", lacking="app", missing="support@r1")
    for turn in ("b1", "b2"):
        found = await cell.take_one()
        assert found.turn_id == turn
        assert await cell.end(found)


async def test_a_delayed_turn_that_is_damaged_is_set_aside_and_enters_when_it_is_mended(cell):
    await become(cell, "delayed")
    await cell.redis.hset("ant:turn:b1", "run", "abc")
    await cell.wait(1000)
    for said in (["quarantined"], [], []):
        assert [act.what for act in await cell.reap()] == said
    assert [one.session_id for one in await not_turns(cell, 10)] == ["b1"]
    await cell.redis.hset("ant:turn:b1", "run", 1)
    assert [act.what for act in await cell.reap_after(MINUTE)] == ["due"]
    assert await not_turns(cell, 10) == []
    assert not await cell.redis.exists("ant:quarantined")


async def test_what_is_wrong_with_the_server_is_said_and_sets_nothing_aside(cell):
    await become(cell, "queued")
    script = load_script("reap", "test_clock").source.replace(
        "local function inspect(session)",
        "local function inspect(session)\n  error({err = 'OOM command not allowed'}, 0)",
    )
    await cell.wait(MINUTE)
    with pytest.raises(ResponseError, match="OOM"):
        await cell.redis.execute_command("EVAL", script, 0, "ant", 0, "", 100, 10, 10)
    assert not await cell.redis.exists("ant:quarantined")


async def test_a_damaged_session_does_not_stop_the_archiver(cell):
    await begin_archiving(cell)
    for name in ("bad", "good"):
        await cell.end(await cell.started(name, name, ttl_ms=600_000))
        await cell.redis.hset(f"ant:session:{name}", "restored", "1")
    await damage(cell, "ant:history:bad", "string")
    await cell.redis.pexpire("ant:history:bad", 600_000)
    found = await take_work(cell)
    assert found is not None
    assert found.session_id == "good"
    assert await take_work(cell) is None
    await cell.reap()
    assert await cell.redis.hkeys("ant:quarantined") == [b"bad"], "the archiver tries again"
    await cell.redis.delete("ant:history:bad")
    await cell.wait(MINUTE)
    assert isinstance(await take_work(cell), Ending)
    await cell.redis.zrem("ant:ending", "bad")
    await cell.reap()
    assert not await cell.redis.exists("ant:quarantined")


OTHER_TYPES = ("string", "list", "set", "zset")


@pytest.mark.one_server
@pytest.mark.parametrize("kind", OTHER_TYPES)
@pytest.mark.parametrize("key", ["ant:turn:t2", "rq:job:t2"])
async def test_a_turn_ends_as_ever_whatever_the_next_one_of_its_session_is(cell, key, kind):
    await follow(cell, MINUTE)
    for turn in ("t1", "t2", "t3"):
        await cell.put(turn, "s", tenant="acme")
    running = await cell.take_one()
    whole = await cell.redis.dump(key)
    await damage(cell, key, kind)
    assert await cell.end(running)
    assert await cell.redis.ttl("ant:turn:t1") > 0
    assert not await cell.redis.zscore("ant:tenant:acme", "t1")
    assert [fields.get(b"turn") for _, fields in await cell.redis.xrange("ant:notices")][-1] == b"t1"
    assert await cell.look_at("s") is not None
    assert await cell.cancel(TurnId("t3"), "enough") == "cancelled"
    await cell.redis.restore(key, 0, whole, replace=True)
    await cell.reap_after(MINUTE)
    assert await cell.end(await cell.take_one())


@pytest.mark.one_server
@pytest.mark.parametrize("kind", OTHER_TYPES)
@pytest.mark.parametrize("bad", ["t1", "t2"])
async def test_the_turns_of_a_tenant_do_not_wait_for_a_damaged_one(cell, bad, kind):
    """It stands in the tenant's line, or has the place in front of it."""
    await cell.redis.hset("ant:limits", "in_flight:acme", 1)
    for number in range(4):
        await cell.put(f"t{number}", f"s{number}", tenant="acme", user="u", priority="high")
    running = await cell.take_one()
    await damage(cell, f"ant:turn:{bad}", kind)
    found = []
    for _ in range(3):
        assert await cell.end(running)
        await cell.reap_after(MINUTE)
        claims = await cell.take()
        if not claims.turns:
            break
        (running,) = claims.turns
        found.append(running.turn_id)
    assert sorted(found) == sorted({"t1", "t2", "t3"} - {bad})
    assert [one.session_id for one in await not_turns(cell, 10)] == [f"s{bad[1]}"]
    await cell.redis.flushdb()
