"""`submit`: a turn is accepted once, into its session's inbox and RQ's queue."""

import json

import pytest
from support.cells import START_MS, load_scripts, open_cell

from antiphon.errors import KeyReused, SessionBusy, SessionChanged, TurnDeleted, UsageError, WrongTenant
from antiphon.wire.editing import delete_session
from antiphon.wire.records import NewTurn

ODD_IDS = ["user-1", 'it\'s "quoted"', "back\\slash", "a:b:c", "naïve ☃ 日本", "{tag} %s [x]", "x" * 200]


async def test_the_first_turn_of_a_session_is_the_head_and_stands_in_the_queue(cell):
    assert await cell.put("t1") == 0
    assert await cell.inbox() == ["t1"]
    assert await cell.queue() == ["t1"]
    assert await cell.status() == "queued"
    assert await cell.look_at() == START_MS + 30_000
    assert await cell.redis.llen("ant:bell:antiphon") == 1


async def test_a_second_turn_waits_behind_the_first(cell):
    await cell.put("t1")
    assert await cell.put("t2") == 1
    assert await cell.inbox() == ["t1", "t2"]
    assert await cell.queue() == ["t1"]
    assert await cell.status("t2") == "waiting"


async def test_a_turn_knows_when_it_was_queued_and_where(cell):
    await cell.put("due", due_in_ms=5_000)
    await cell.put("t1")
    await cell.wait(5_000)
    await cell.put("t2")
    await cell.reap()
    places = {}
    for turn_id in ("t1", "t2", "due"):
        record = await cell.turn(turn_id)
        places[turn_id] = (
            record.queued_seq,
            int(record.fields["queued_at"]),
            int(record.fields["position"]),
        )
    assert places == {
        "t1": (1, START_MS, 0),
        "t2": (2, START_MS + 5_000, 1),
        "due": (3, START_MS + 5_000, 2),
    }


async def test_a_repeated_submit_gives_the_first_position_and_changes_nothing(cell):
    await cell.put_each("t1", "t2")
    before = await cell.contents()
    assert await cell.put("t2") == 1
    assert await cell.contents() == before


async def test_a_repetition_after_the_end_is_still_the_first_turn(cell):
    await cell.end(await cell.started("t1"))
    assert await cell.put("t1") == 0
    assert await cell.status() == "finished"
    assert await cell.queue() == []


async def test_a_key_used_for_another_text_is_refused(cell):
    await cell.put("t1")
    before = await cell.contents()
    with pytest.raises(KeyReused):
        await cell.put("t1", digest="another")
    with pytest.raises(KeyReused):
        await cell.put("t1", session="elsewhere")
    assert await cell.contents() == before


async def test_a_busy_session_refuses_who_asked_to_be_refused(cell):
    await cell.put("t1", if_busy="reject")
    with pytest.raises(SessionBusy):
        await cell.put("t2", if_busy="reject")
    assert await cell.inbox() == ["t1"]


async def test_the_first_agent_that_is_named_stays_the_sessions(cell):
    for number, agent in enumerate([b"", b"support", b"other"]):
        await cell.put(f"t{number}", agent=agent)
    assert (await cell.take_one()).session_agent == b"support"


async def test_a_turn_goes_to_its_own_queue_then_the_sessions_then_the_agents_then_the_default(cell):
    for turn, queues in {
        "default": {},
        "of-agent": {"agent_queue": "agents"},
        "of-turn": {"agent_queue": "agents", "queue": "turns"},
    }.items():
        await cell.put(turn, session=turn, **{"queue": "", "default_queue": "fallback", **queues})
    assert [await cell.queue(name) for name in ("fallback", "agents", "turns")] == [
        ["default"], ["of-agent"], ["of-turn"],
    ]  # fmt: skip
    await cell.redis.hset("ant:session:s", "queue", "sessions")
    await cell.put("t1", queue="", agent_queue="agents")
    await cell.put("t2", queue="turns", agent_queue="agents")
    assert [(await cell.turn(turn)).fields["queue"] for turn in ("t1", "t2")] == [b"sessions", b"turns"]
    assert await cell.redis.hget("ant:session:s", "queue") == b"sessions"


async def test_a_session_keeps_the_queue_of_its_agent_for_turns_that_name_neither(cell):
    await cell.put("t1", queue="", agent=b'"a"', agent_queue="of-a")
    await cell.put("t2", queue="", agent=b'"b"', agent_queue="of-b")
    await cell.put("t3", queue="")
    await cell.put("t4", queue="urgent")
    await cell.put("t5", queue="")
    queues = [(await cell.turn(f"t{number}")).fields["queue"].decode() for number in range(1, 6)]
    assert queues == ["of-a", "of-b", "of-a", "urgent", "of-a"]


async def test_a_session_without_a_queue_keeps_that_of_the_first_turn_that_names_one(cell):
    for number, queue in enumerate(["", "first", "second", ""]):
        await cell.put(f"t{number}", queue=queue)
    queues = [(await cell.turn(f"t{number}")).fields["queue"].decode() for number in range(4)]
    assert queues == ["antiphon", "first", "second", "first"]


async def test_a_session_keeps_its_tenant_and_refuses_another(cell):
    await cell.put("t1", tenant="acme")
    await cell.put("t2")
    await cell.put("t3", tenant="acme")
    await cell.put("u1", "without")
    before = await cell.contents()
    for session, tenant in (("s", "other"), ("without", "acme")):
        with pytest.raises(WrongTenant, match=f"does not belong to the tenant '{tenant}'"):
            await cell.put("t5", session, tenant=tenant)
    assert await cell.contents() == before
    assert (await cell.snapshot("s")).fields["tenant"] == b"acme"


@pytest.mark.parametrize("older", [False, True])
async def test_a_repetition_by_another_tenant_is_refused(cell, older):
    """The key of a turn gives nobody else's turn away, also where an older release has accepted it."""
    await cell.put("t1", tenant="acme")
    await cell.put("u1", "without")
    if older:
        await cell.redis.hdel("ant:turn:t1", "tenant")
    for turn, session in (("t1", "s"), ("u1", "without")):
        with pytest.raises(WrongTenant):
            await cell.put(turn, session, tenant="other")
        with pytest.raises(WrongTenant):  # and does not tell it that the key is in use
            await cell.put(turn, session, tenant="other", digest="another request")
    assert await cell.put("t1", tenant="acme") == await cell.put("t1") == 0


async def test_another_tenant_is_not_told_that_a_session_is_closed(cell):
    await cell.end(await cell.started("t1", tenant="acme"))
    await cell.redis.hset("ant:session:s", "closed", "1")
    with pytest.raises(WrongTenant):
        await cell.put("t2", tenant="other")


async def test_a_repetition_is_known_by_its_tenant_when_its_session_is_gone(cell):
    await cell.put("t1", tenant="acme")
    await cell.put("u1", "without")
    for _ in range(2):
        await cell.end(await cell.take_one(limit=1))
    await delete_session(cell, "s")
    await delete_session(cell, "without")
    with pytest.raises(WrongTenant):
        await cell.put("t1", tenant="other")
    for turn, session, tenant in (("t1", "s", "acme"), ("u1", "without", "any")):
        with pytest.raises(TurnDeleted):
            await cell.put(turn, session, tenant=tenant)


async def test_a_turn_runs_again_within_the_limits_of_a_new_one(cell):
    await cell.end(await cell.started("t1"), "failed")
    await cell.put("t2")
    with pytest.raises(SessionBusy):
        await cell.put("t1", again="a", if_busy="reject")
    with pytest.raises(SessionBusy, match="full"):
        await cell.put("t1", again="a", inbox_limit=1)
    assert await cell.status() == "failed"
    assert await cell.put("t1", again="a", inbox_limit=2) == 1


async def test_a_turn_keeps_the_tenant_that_its_session_had(cell):
    await cell.put("t1", tenant="acme")
    await cell.put("t2")
    await cell.put("t3", "without")
    assert [(await cell.turn(turn)).tenant for turn in ("t1", "t2", "t3")] == ["acme", "acme", None]


async def test_a_session_knows_its_last_thousand_turns_for_as_long_as_it_lives(cell):
    key = cell.keys.turns("s")
    await cell.put("t1", ttl_ms=60_000)
    assert await cell.redis.pttl(key) == -1
    await cell.end(await cell.take_one())
    assert 0 < await cell.redis.pttl(key) <= 60_000
    await cell.redis.rpush(key, *[f"older{number}" for number in range(998)])
    await cell.put("t2")
    assert (await cell.redis.lindex(key, 0), await cell.redis.llen(key)) == (b"t1", 1000)
    assert await cell.redis.pttl(key) == -1
    await cell.put("t3")
    assert (await cell.redis.lindex(key, 0), await cell.redis.llen(key)) == (b"older0", 1000)


async def test_sessions_that_are_kept_for_ever_stand_behind_all_others_in_their_list(cell):
    await cell.put("t1", "for-ever", ttl_ms=0)
    await cell.put("t2", "a-year", ttl_ms=365 * 86400_000)
    for turn in (await cell.take()).turns:
        await cell.end(turn)
    assert await cell.redis.zrange(cell.keys.sessions, 0, -1) == [b"a-year", b"for-ever"]
    await cell.reap_after(400 * 86400_000)
    assert b"for-ever" in await cell.redis.zrange(cell.keys.sessions, 0, -1)
    await delete_session(cell, "for-ever")


async def lives(cell):
    """The seconds that the session's history, events, turns and hash will still live, of the hash without its hour."""
    *found, of_hash = [
        await cell.redis.ttl(f"ant:{name}:s") for name in ("history", "events", "turns", "session")
    ]
    return [*found, of_hash - 3600 if of_hash > 0 else of_hash]


@pytest.mark.parametrize("delayed", [False, True])
async def test_the_last_ttl_that_was_given_is_the_sessions(delayed, cell):
    """Also where it becomes longer, or for ever. One that is not given changes nothing."""
    given = [None, 60_000, None, 600_000, 0, None, 50_000]
    seconds = [30 * 86400, 60, 60, 600, None, None, 50]
    for number, (ttl_ms, ttl) in enumerate(zip(given, seconds, strict=True)):
        await cell.put(f"t{number}", ttl_ms=ttl_ms, due_in_ms=1 if delayed else 0)
        listed = await cell.redis.zscore("ant:sessions", "s") - await cell.now()
        if not delayed or number == 0:
            await cell.reap_after(1)
            await cell.end(await cell.take_one())
        of_events = ttl and min(ttl, 3600)
        for life, most in zip(await lives(cell), [ttl, of_events, ttl, ttl], strict=True):
            assert life == -1 if most is None else most - 20 < life <= most + 1
        assert listed > 50 * 365 * 86400_000 if ttl is None else ttl * 1000 <= listed <= ttl * 1000 + 1


async def test_a_ttl_is_kept_only_where_it_was_given(cell):
    await cell.put("t1")
    assert await cell.redis.hget("ant:session:s", "ttl") is None


async def test_a_full_inbox_refuses_one_more(cell):
    await cell.put("t1", inbox_limit=2)
    await cell.put("t2", inbox_limit=2)
    with pytest.raises(SessionBusy, match="2 turns"):
        await cell.put("t3", inbox_limit=2)
    assert await cell.inbox() == ["t1", "t2"]


async def test_a_closed_session_refuses(cell):
    await cell.end(await cell.started("t1"))
    await cell.redis.hset("ant:session:s", "closed", "1")
    with pytest.raises(UsageError):
        await cell.put("t2")


async def test_a_delayed_turn_enters_the_inbox_when_it_is_due(cell):
    await cell.put("t1", due_in_ms=5_000)
    assert (await cell.turn("t1")).fields["due_at"] == str(START_MS + 5_000).encode()
    assert await cell.inbox() == []
    assert await cell.queue() == []
    assert await cell.reap_after(4_999) == []
    assert [(done.turn_id, done.what) for done in await cell.reap_after(1)] == [("t1", "due")]
    assert await cell.inbox() == ["t1"]
    assert await cell.queue() == ["t1"]
    await cell.end(await cell.take_one())


async def test_a_delayed_turn_is_submitted_once_too(cell):
    await cell.put("t0")
    assert await cell.put("t1", due_in_ms=5_000) == 1
    before = await cell.contents()
    assert await cell.put("t1", due_in_ms=5_000) == 1
    assert await cell.contents() == before


async def test_the_session_lives_until_its_last_delayed_turn_is_due(cell):
    await cell.put("t1", due_in_ms=500_000, ttl_ms=60_000)
    assert await cell.redis.ttl("ant:session:s") > 500
    await cell.put("t2", ttl_ms=60_000)
    assert await cell.redis.ttl("ant:session:s") == -1
    await cell.end(await cell.take_one())
    assert 500 < await cell.redis.ttl("ant:history:s") <= 560
    assert 500 < await cell.redis.ttl("ant:events:s") <= 560
    assert await cell.redis.ttl("ant:session:s") > 560


@pytest.mark.parametrize("session", ODD_IDS)
async def test_any_session_id_passes_through_every_script(cell, session):
    await cell.put("t1", session)
    await cell.put("t2", session)
    first = await cell.take_one()
    assert first.session_id == session
    assert await cell.renew("w1", [(first.session_id, first.fence)], lease_ms=1000) == [""]
    assert await cell.say(first, 1, b'{"type":"text_delta","text":"x"}') == ""
    assert await cell.append_step(first, length=0, step=2, entries=[b"{}"], bodies=[]) == ""
    assert await cell.give_back(first, "error", reason='said "no"\n\\')
    second = await cell.take_one('w "2"\\')
    assert [done.what for done in await cell.reap_after(60_000)] == ["recovered"]
    assert not await cell.end(second)
    await cell.cancel("t2", "line\none\t\x01\x7f")
    await cell.end(await cell.take_one())
    events = await cell.events(session)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["session_id"] for event in events if "session_id" in event} == {session}
    assert [event["reason"] for event in events if event["type"] == "turn_cancelled"] == [
        "line\none\t\x01\x7f"
    ]
    assert (await cell.snapshot(session)).cursor == len(events)
    assert await cell.redis.keys("ant:inbox:*") == []


async def test_no_session_id_reaches_the_keys_of_another(cell):
    for number, session in enumerate(["a", "a:b", "inbox:a", "session:a", "a:b:c"]):
        await cell.put(f"t{number}", session)
    assert [await cell.inbox(session) for session in ("a", "a:b", "inbox:a")] == [["t0"], ["t1"], ["t2"]]
    while claims := (await cell.take()).turns:
        for turn in claims:
            await cell.end(turn)


async def test_the_channel_names_its_database(redis_url):
    other = redis_url.removesuffix("/0") + "/3"
    async with open_cell(redis_url) as here, open_cell(other) as there, here.redis.pubsub() as heard:
        await heard.psubscribe("ant:live:*")
        await heard.get_message(timeout=5)
        await there.put("t1")
        message = await heard.get_message(timeout=5)
        assert message["channel"] == b"ant:live:3:s"
        assert json.loads(message["data"])["type"] == "turn_queued"
        await there.redis.flushdb()


async def test_what_is_published_is_what_is_logged(cell):
    async with cell.redis.pubsub() as heard:
        await heard.subscribe("ant:live:0:s")
        await heard.get_message(timeout=5)
        turn = await cell.started("t1")
        await cell.say(turn, 1, b'{"type":"text_delta","text":"a"}', b'{"type":"text_delta","text":"b"}')
        await cell.end(turn)
        logged = [fields[b"e"] for _, fields in await cell.redis.xrange("ant:events:s")]
        assert [(await heard.get_message(timeout=5))["data"] for _ in logged] == logged


async def test_scripts_that_the_server_has_forgotten_are_sent_again(cell):
    await load_scripts(cell)
    for number in range(3):
        await cell.redis.script_flush()
        await cell.put(f"t{number}")
        await cell.redis.script_flush()
        turn = await cell.take_one()
        await cell.redis.script_flush()
        assert await cell.say(turn, 1, b'{"type":"text_delta","text":"x"}') == ""
        await cell.redis.script_flush()
        assert await cell.end(turn)
    assert len(await cell.history()) == 3


@pytest.mark.parametrize(
    "wrong", [{"due_in_ms": "inf"}, {"due_in_ms": "nan"}, {"due_in_ms": -1}, {"ttl_ms": "inf"}]
)
async def test_a_wait_that_nobody_can_wait_is_refused_before_anything_is_written(wrong, cell):
    before = await cell.contents()
    with pytest.raises(UsageError, match="100 years"):
        await cell.put("t1", **wrong)
    assert await cell.contents() == before


async def test_a_failed_turn_of_a_key_runs_again_on_purpose(cell):
    await cell.end(await cell.started("t1"), "failed")
    assert await cell.put("t1") == 0
    assert await cell.status() == "failed", "the key alone gives the turn that there was"
    await cell.put("t2")
    assert await cell.put("t1", again="a") == 1
    assert (await cell.inbox(), await cell.status()) == (["t2", "t1"], "waiting")
    assert (await cell.turn("t1")).run == 2
    assert await cell.put("t1", again="a") == 1
    with pytest.raises(KeyReused):
        await cell.put("t1", again="b", digest="another request")


async def test_a_repeated_submit_of_a_failed_turn_begins_one_run(cell):
    await cell.end(await cell.started("t1"), "failed")
    await cell.end(await cell.started("t1", again="a"), "failed")
    before = await cell.contents()
    assert await cell.put("t1", again="a") == 0
    assert await cell.contents() == before


@pytest.mark.parametrize("status", ["queued", "running", "finished", "cancelled"])
async def test_only_a_failed_turn_runs_again(cell, status):
    await cell.put("t1")
    turn = None if status == "queued" else await cell.take_one()
    if status in ("finished", "cancelled"):
        await cell.end(turn, status)
    before = await cell.contents()
    assert await cell.put("t1", again="a") == 0
    assert await cell.contents() == before
    if status == "running":
        await cell.end(turn)


REQUEST = b'{"messages":[{"role":"user","parts":[]}],"agent":"a"}'
INPUT = [{"role": "user", "parts": []}]


async def queued_events(cell):
    return [event for event in await cell.events() if event["type"] == "turn_queued"]


async def test_what_is_said_is_in_the_event_whenever_the_turn_enters_the_inbox(redis_url):
    length = len(b'[{"role":"user","parts":[]}]')
    async with open_cell(redis_url) as cell:
        await cell.put("t1", text=REQUEST, input_bytes=length)
        await cell.put("t2", text=REQUEST, input_bytes=length, due_in_ms=1000)
        await cell.end(await cell.take_one(), "failed")
        await cell.requeue("t1")
        await cell.reap_after(1000)
        events = await queued_events(cell)
        assert [event["turn_id"] for event in events] == ["t1", "t1", "t2"]
        assert [(event.get("input"), event.get("input_omitted")) for event in events] == [(INPUT, None)] * 3


async def test_what_is_too_long_is_left_out_and_the_event_says_so(cell):
    await cell.put("t1", text=REQUEST, input_bytes=0)
    event = (await queued_events(cell))[0]
    assert (event.get("input"), event["input_omitted"]) == (None, True)


async def test_a_turn_keeps_its_key_and_when_it_was_submitted(cell):
    began = await cell.now()
    await cell.end(await cell.started("t1", key="order 7"), "failed")
    await cell.wait(10)
    await cell.requeue("t1")
    fields = (await cell.turn("t1")).fields
    assert (fields["key"], int(fields["created"])) == (b"order 7", began)


VERSIONED = b'{"provider":"p","model":"m","approval":true,"version":2}'


@pytest.mark.parametrize(
    ("agent", "request_", "stored"),
    [
        (b"", b'{"messages":[]}', b'{"messages":[],"version":"2"}'),
        (b"", b'{"messages":[],"version":"3"}', b'{"messages":[],"version":"3"}'),
        (
            b"",
            b'{"messages":[],"version":"3","trace":"00-1"}',
            b'{"messages":[],"version":"3","trace":"00-1"}',
        ),
        (
            b"",
            b'{"messages":[],"params":{"version":"9"}}',
            b'{"messages":[],"params":{"version":"9"},"version":"2"}',
        ),
        (b'"other"', b'{"messages":[]}', b'{"messages":[]}'),
    ],
    ids=["plain", "has one", "has one and a trace", "within", "names an agent"],
)
async def test_a_turn_that_runs_on_the_versioned_agent_of_its_session_has_a_version(
    cell, agent, request_, stored
):
    """As text: a worker of 0.1.0 passes over versions of agents, and refuses a request with this one."""
    await cell.put("t1", agent=VERSIONED)
    await cell.submit(NewTurn("s", "t2", request_, "d2", agent=agent))
    assert (await cell.turn("t2")).fields["request"] == stored


async def test_an_agent_without_a_version_leaves_requests_as_they_are(cell):
    await cell.put("t1", agent=b'{"provider":"p","model":"m"}')
    await cell.submit(NewTurn("s", "t2", b'{"messages":[]}', "d2"))
    assert (await cell.turn("t2")).fields["request"] == b'{"messages":[]}'


async def test_a_turn_that_names_the_last_event_is_refused_once_the_session_went_on(cell):
    with pytest.raises(SessionChanged):
        await cell.put("t1", cursor=1)
    assert not await cell.redis.exists(cell.keys.turn("t1"), cell.keys.session("s"))
    assert await cell.put("t1", cursor=0) == 0
    last = (await cell.events())[-1]["seq"]
    with pytest.raises(SessionChanged):
        await cell.put("t2", cursor=last - 1)
    assert await cell.inbox() == ["t1"]
    assert await cell.put("t2", cursor=last) == 1
    assert await cell.put("t2", cursor=last) == 1, "a repetition is the same turn"


async def test_one_of_rqs_jobs_that_becomes_a_turn_says_nothing_of_its_own_run(cell):
    """It was started before, and its record was about to expire."""
    said = dict.fromkeys(("started_at", "ended_at", "worker_name", "exc_info"), b"of its own")
    await cell.redis.hset("rq:job:t1", mapping={"data": "x", **said})
    await cell.redis.expire("rq:job:t1", 60)
    await cell.put("t1")
    assert await cell.redis.hmget("rq:job:t1", *said) == [b""] * 4
    assert await cell.redis.ttl("rq:job:t1") == -1
