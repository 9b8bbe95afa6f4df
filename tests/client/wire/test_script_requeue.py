"""`requeue`: a failed turn begins a new run, once for each call, and remembers the runs that are over."""

import json

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer
from support.cells import open_cell

from antiphon.errors import StoreError, TurnDeleted, TurnNotFound, UsageError, WrongTenant
from antiphon.wire.editing import Change, FieldChange, change_session, delete_session


async def failed(cell, session="s", **options):
    turn = await cell.started("t1", session)
    await cell.wait(5)
    await cell.end(turn, "failed", error_code="provider", error='it "broke"\nthere', **options)


async def runs(cell, turn="t1"):
    fields = (await cell.turn(turn)).fields
    return [json.loads(line) for line in fields.get("runs", b"").splitlines()]


async def test_a_new_run_begins_at_once(cell):
    await failed(cell)
    await cell.redis.delete("ant:bell:antiphon", "rq:queues")
    await cell.requeue("t1")
    record = await cell.turn("t1")
    assert (record.status, record.run, record.attempt) == ("queued", 2, 0)
    assert (await cell.inbox(), await cell.queue()) == (["t1"], ["t1"])
    assert await cell.redis.ttl("ant:turn:t1") == -1
    assert await cell.redis.zscore("rq:failed:antiphon", "t1") is None
    assert await cell.redis.exists("ant:bell:antiphon")
    assert await cell.redis.smembers("rq:queues") == {b"rq:queue:antiphon"}
    assert [event["run"] for event in await cell.events() if event["type"] == "turn_queued"] == [1, 2]
    turn = await cell.take_one()
    assert (turn.run, turn.attempt) == (2, 1)
    await cell.end(turn)


async def test_where_the_list_of_active_sessions_is_damaged_no_run_begins(cell):
    await failed(cell)
    await cell.redis.set("ant:active", "no list")
    before = await cell.contents()
    with pytest.raises(StoreError, match="ant:active"):
        await cell.requeue("t1")
    assert await cell.contents() == before
    await cell.redis.delete("ant:active")
    await cell.requeue("t1")
    assert (await cell.turn("t1")).run == 2


async def test_nothing_of_the_run_that_is_over_stays_in_the_new_one(cell):
    turn = await cell.started("t1")
    await cell.redis.hset("ant:turn:t1", mapping={"cancel": "enough", "keep": "partial", "steers": "t0"})
    await cell.end(turn, "failed", response=b'{"text":"half"}', error="it broke", calls="untold")
    await cell.redis.hset("ant:turn:t1", "journal", "[]")
    await cell.requeue("t1")
    fields = (await cell.turn("t1")).fields
    gone = {
        "cancel",
        "keep",
        "error",
        "error_code",
        "response",
        "journal",
        "place",
        "started_at",
        "ended_at",
        "steers",
    }
    assert fields.keys() & gone == set()


async def test_a_run_that_is_over_is_remembered_with_what_it_said(cell):
    began = await cell.now()
    await failed(cell, response=b'{"text":"half"}')
    await cell.requeue("t1")
    await cell.end(await cell.take_one(), "failed", error_code="again", error="no", service=b'{"status":429}')
    await cell.redis.hset("ant:turn:t1", "journal", '[{"type":"step"}]')
    await cell.requeue("t1")
    first, second = await runs(cell)
    assert first == {
        "run": 1, "status": "failed", "attempt": 1, "started": began, "ended": began + 5, "code": "provider",
        "error": 'it "broke"\nthere', "response": {"text": "half"}, "journal": None,
        "service": None,
    }  # fmt: skip
    assert (second["run"], second["code"], second["response"]) == (2, "again", None)
    assert second["service"] == {"status": 429}
    assert b"service" not in (await cell.turn("t1")).fields
    assert second["journal"] == [{"type": "step"}]


async def test_the_last_twenty_runs_are_remembered(cell):
    await cell.put("t1")
    for _ in range(23):
        await cell.end(await cell.take_one(), "failed")
        await cell.requeue("t1")
    assert [one["run"] for one in await runs(cell)] == list(range(4, 24))


async def test_a_repeated_call_begins_one_run(redis_url, monkeypatch):
    monkeypatch.setattr("antiphon.wire.cell.new_again", lambda: "the same call")
    async with open_cell(redis_url) as cell:
        await failed(cell)
        await cell.requeue("t1")
        before = await cell.contents()
        await cell.requeue("t1")
        assert await cell.contents() == before
        await cell.end(await cell.take_one(), "failed")
        await cell.requeue("t1")
        assert await cell.status() == "failed", "the call of old comes again when its run is over"


async def test_a_waiting_run_stands_behind_the_others_and_is_listed_once(cell):
    await failed(cell)
    await cell.put("t2")
    await cell.requeue("t1")
    assert (await cell.inbox(), await cell.queue()) == (["t2", "t1"], ["t2"])
    assert await cell.status() == "waiting"
    assert await cell.redis.lrange("ant:turns:s", 0, -1) == [b"t1", b"t2"]


async def test_a_turn_that_its_session_has_forgotten_is_listed_again(cell):
    await failed(cell)
    await cell.redis.delete("ant:turns:s")
    await cell.requeue("t1")
    assert await cell.redis.lrange("ant:turns:s", 0, -1) == [b"t1"]


async def test_what_rqs_tools_offered_meanwhile_runs_once(cell):
    await failed(cell)
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    await cell.requeue("t1")
    turn = await cell.take_one()
    await cell.end(turn)
    assert (await cell.take()).turns == []
    assert (await cell.turn("t1")).run == 2


async def test_a_job_that_was_deleted_is_whole_again(cell, redis_url):
    await failed(cell)
    await cell.redis.delete("rq:job:t1")
    await cell.requeue("t1")
    with Redis.from_url(redis_url) as redis:
        job = Job.fetch("t1", connection=redis, serializer=JSONSerializer)
        assert (job.get_status(), job.args) == ("queued", ["t1"])
        assert job.func_name == "antiphon_worker.jobs.run_turn"


@pytest.mark.parametrize("status", ["finished", "cancelled", "queued", "running"])
async def test_a_turn_that_has_not_failed_is_refused_and_left_alone(cell, status):
    await cell.put("t1")
    turn = None if status == "queued" else await cell.take_one()
    if status in ("finished", "cancelled"):
        await cell.end(turn, status)
    before = await cell.contents()
    with pytest.raises(UsageError, match=f"is {status}: only failed turns"):
        await cell.requeue("t1")
    assert await cell.contents() == before
    if status == "running":
        await cell.end(turn)


async def test_a_closed_session_takes_no_new_run(cell):
    await failed(cell)
    closed = Change([FieldChange("closed", b"", b"1")])
    assert await change_session(cell, "s", "op", closed, when="any", ttl_ms=10**9) is True
    before = await cell.contents()
    with pytest.raises(UsageError, match="closed"):
        await cell.requeue("t1")
    with pytest.raises(UsageError, match="closed"):
        await cell.put("t1", again="once more")
    assert await cell.contents() == before


async def test_a_turn_that_is_unknown_leaves_nothing(cell):
    before = await cell.contents()
    with pytest.raises(TurnNotFound):
        await cell.requeue("gone")
    assert await cell.contents() == before


async def _failed_and_its_session_is_gone(cell):
    await cell.end(await cell.started("t1", tenant="acme"), "failed")
    await cell.redis.delete(*(f"ant:{kind}:s" for kind in ("session", "history", "events", "turns")))


@pytest.mark.parametrize("how", ["requeue", "submit", "rq"])
async def test_a_session_that_begins_again_with_a_requeued_turn_belongs_to_its_tenant(how, cell):
    await _failed_and_its_session_is_gone(cell)
    if how == "requeue":
        await cell.requeue("t1")
    elif how == "submit":
        await cell.put("t1", again="once more")
    else:
        await cell.redis.hset("rq:job:t1", "status", "queued")
        await cell.redis.rpush("rq:queue:antiphon", "t1")
    turn = await cell.take_one()
    assert turn.run == 2
    with pytest.raises(WrongTenant):
        await cell.put("t2", tenant="other")
    await cell.put("t3", tenant="acme")
    await cell.end(turn)
    await cell.end(await cell.take_one())


@pytest.mark.parametrize("owner", ["other", ""])
async def test_a_failed_turn_does_not_run_again_in_the_session_of_another_tenant(owner, cell):
    await _failed_and_its_session_is_gone(cell)
    await cell.put("t2", tenant=owner)
    with pytest.raises(WrongTenant, match="Another tenant has begun"):
        await cell.requeue("t1")
    for tenant in ("", "acme"):
        with pytest.raises(WrongTenant):
            await cell.put("t1", again="once more", tenant=tenant)
    await cell.redis.hset("rq:job:t1", "status", "queued")
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    turn = await cell.take_one()
    assert (turn.turn_id, await cell.status("t1"), await cell.inbox()) == ("t2", "failed", ["t2"])
    assert await cell.redis.hget("rq:job:t1", "status") == b"failed"
    await cell.end(turn)


async def test_a_deleted_turn_does_not_run_again(cell):
    await cell.end(await cell.started("t1"), "failed")
    await delete_session(cell, "s")
    with pytest.raises(TurnDeleted):
        await cell.requeue("t1")
    await cell.redis.hset("rq:job:t1", "status", "queued")
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    assert (await cell.take()).turns == []
    assert await cell.inbox() == []


async def test_a_session_of_another_tenant_that_is_over_is_in_nobodys_way(cell):
    await _failed_and_its_session_is_gone(cell)
    await cell.end(await cell.started("t2", tenant="other"))
    await cell.redis.delete("ant:history:s", "ant:events:s", "ant:turns:s")
    await cell.redis.pexpire("ant:session:s", 1_800_000)
    await cell.requeue("t1")
    assert await cell.redis.hget("ant:session:s", "tenant") == b"acme"
    await cell.end(await cell.take_one())


async def test_a_turn_of_an_older_release_that_names_no_tenant_runs_again_in_its_session(cell):
    await cell.end(await cell.started("t1", tenant="acme"), "failed")
    await cell.redis.hdel("ant:turn:t1", "tenant")
    await cell.requeue("t1")
    await cell.end(await cell.take_one())
