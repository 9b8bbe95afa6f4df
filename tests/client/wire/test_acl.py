"""Users of Redis with the rights of their role: these are enough, and nothing else is possible."""

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError
from support.ensemble import agent_spec, open_ensemble

from antiphon.cli.redis import redis as redis_command
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, StoreUnsupported, TurnCancelled, UsageError
from antiphon.redis.deployment import cell_states
from antiphon.wire.acl import ROLES, user_rule
from antiphon.wire.connection.open import open_redis
from antiphon.wire.preflight import check_redis, read_redis


@pytest.fixture
def user(redis_url):
    """Make a user, and give the URL with which it connects."""
    made = []
    with Redis.from_url(redis_url) as redis:

        def make(role, *more, **options):
            rule = user_rule(role, role, "secret", **options).split()
            redis.execute_command("ACL", "SETUSER", *rule, *more)
            made.append(role)
            return redis_url.replace("://", f"://{role}:secret@")

        yield make
        redis.execute_command("ACL", "DELUSER", *made)


async def cancelled(turn):
    with pytest.raises(TurnCancelled, match="enough"):
        await turn.result(60)


@pytest.mark.main_path
async def test_the_rights_of_the_page_are_enough(user, redis_url, tmp_path, processes):
    """All that a client does, and a supervised worker, also a turn that is cancelled while it runs."""
    worker, client_url = user("worker"), user("client")
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        ensemble.supervisor(url=worker, lease=2).ready()
        async with AsyncClient(client_url) as client:
            turn = await client.submit("s", "hello tool:note", agent=agent_spec())
            events = [event.type async for event in turn.stream()]
            assert (events[0], events[-1]) == ("turn_queued", "turn_finished")
            assert (await turn.result(60)).text
            running = await client.submit("s", "go on gate:g", agent=agent_spec())
            waiting = await client.submit("s", "and on", agent=agent_spec())
            delayed = await client.submit("s", "later", agent=agent_spec(), delay=3600)
            await ensemble.waits("g")
            assert await running.cancel("enough") == "requested"
            for one in (waiting, delayed):
                assert await one.cancel("enough") == "cancelled"
            for one in (running, waiting, delayed):
                await cancelled(one)
            session = client.session("s")
            await session.clear()
            assert await (await session.fork("f")).delete()
            assert [one.session_id async for one in client.sessions()] == ["s"]
            assert await session.delete()


async def test_a_turn_is_accepted_whole_where_its_events_may_not_be_published(user, ensemble):
    async with ensemble.worker():
        async with AsyncClient(user("client", "resetchannels")) as client:
            turn = await client.submit("s", "hello", agent=agent_spec())
        found = await ensemble.client.turn(turn.id)
        assert (await found.result(60)).text
        await ensemble.whole("s")


async def test_a_worker_that_may_not_publish_events_does_not_start(user):
    redis = open_redis(user("worker", "resetchannels", "&ant:control:*"), retries=0)
    try:
        facts = await read_redis(redis)
    finally:
        await redis.aclose()
    with pytest.raises(StoreUnsupported, match="ACL SETUSER <user> \\+publish"):
        check_redis(facts, "none")


@pytest.mark.parametrize(("role", "reads_memory"), [("client", False), ("worker", True), ("operator", True)])
async def test_a_role_that_exports_metrics_reads_the_state_of_its_cell(user, role, reads_memory):
    (state,) = await cell_states([user(role)], "ant")
    assert (state.up, state.writable, state.workers, state.queues) == (True, True, [], [])
    assert state.counts is not None
    assert (state.memory is not None) == reads_memory


HARM = [
    "FLUSHALL", "FLUSHDB", "CONFIG SET maxmemory 1", "CONFIG GET requirepass", "SHUTDOWN NOSAVE", "KEYS *",
    "DEBUG SLEEP 0", "ACL LIST", "REPLICAOF localhost 1", "MONITOR", "SCRIPT FLUSH", "SWAPDB 0 1",
    "CLIENT KILL TYPE normal", "SAVE", "GET other:key", "SET other:key x", "PUBLISH other x", "CLIENT LIST",
    "MIGRATE h 1 k 0 1",
]  # fmt: skip
MORE_HARM = {
    "worker": [],
    "client": ["PUBLISH ant:control:w x", "PUBLISH rq:pubsub:w x", "INFO"],
    "operator": [],
    "subscriber": [
        "HGET ant:session:other-1 seq", "XRANGE ant:events:other-1 - +", "LRANGE ant:history:other-1 0 -1",
        "SUBSCRIBE ant:live:0:other-1", "SUBSCRIBE ant:live:0:x:acme-1", "PSUBSCRIBE *", "HGETALL ant:turn:t",
        "HGETALL ant:limits", "HGETALL ant:webhook:hook", "SMEMBERS rq:queues", "SCAN 0", "RANDOMKEY",
        "HSET ant:session:acme-1 seq 7", "DEL ant:history:acme-1", "XADD ant:events:acme-1 * e x",
        "PUBLISH ant:live:0:acme-1 x", "EVAL return{} 0", "SCRIPT LOAD return{}", "INFO", "PUBSUB CHANNELS",
    ],
}  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_does_not_need_it_may_not_do(user, role):
    allowed = (
        {"CONFIG GET requirepass"} if role == "worker" else set()
    )  # for `appendfsync`: there is no finer right
    url = user(role, sessions="acme-" if role == "subscriber" else None)
    done = []
    with Redis.from_url(url) as redis:
        for command in {*HARM, *MORE_HARM[role]} - allowed:
            try:
                redis.execute_command(*command.split())
            except NoPermissionError:
                continue
            done.append(command)
    assert done == []


async def test_a_subscriber_reads_the_sessions_that_its_ids_begin_with_and_no_others(
    user, ensemble, redis_url
):
    async with ensemble.worker():
        async with AsyncClient(redis_url) as client:
            for session in ("acme-1", "acme*1", "other-1"):
                turn = await client.submit(session, "hello", agent=agent_spec())
                await turn.result(60)
        async with AsyncClient(user("subscriber", sessions="acme-")) as reader:
            seen = []
            async for event in reader.subscribe("acme-1", after=0):
                seen.append(event.type)
                if event.type == "turn_finished":
                    break
            assert seen[0] == "turn_queued"
            for session in ("other-1", "acme*1"):
                with pytest.raises(AgentError, match="may not do"):
                    await anext(reader.subscribe(session, after=0))
            with pytest.raises(AgentError, match="may not do"):
                await reader.submit("acme-1", "hello", agent=agent_spec())
        async with AsyncClient(user("subscriber", sessions="acme*")) as reader:
            assert (await anext(reader.subscribe("acme*1", after=0))).seq == 1
            with pytest.raises(AgentError, match="may not do"):
                await anext(reader.subscribe("acme-1", after=0))


async def test_an_operator_sees_and_stops_what_runs(user, ensemble):
    async with ensemble.worker(), AsyncClient(user("operator")) as client:
        turn = await client.submit("s", "go on gate:g", agent=agent_spec())
        await ensemble.waits("g")
        assert await turn.cancel("enough") == "requested"
        await cancelled(turn)
        requeued = await client.requeue(await failed_turn(client))
        assert (await requeued.status()) != "failed"
        await client.set_tenant_limits("acme", in_flight=2)
        assert (await client.tenant_limits("acme")).in_flight == 2


async def failed_turn(client):
    turn = await client.submit("f", "hello", agent="nobody")
    with pytest.raises(AgentError):
        await turn.result(60)
    return turn


def test_a_prefix_matches_itself_alone():
    rule = user_rule("client", "c", "p", prefix="a*b")
    assert " ~a\\*b:* " in rule
    assert " &a\\*b:live:* " in rule


@pytest.mark.parametrize(
    ("role", "name", "options"),
    [
        ("client", "a b", {}), ("client", "", {}), ("client", "a\n", {}), ("client", "c", {"sessions": "x"}),
        ("subscriber", "s", {}), ("subscriber", "s", {"sessions": "a b"}), ("client", "c", {"prefix": "a b"}),
    ],
)  # fmt: skip
def test_what_an_acl_cannot_hold_is_refused(role, name, options):
    with pytest.raises(UsageError):
        user_rule(role, name, "secret", **options)


def test_the_command_writes_a_line_whose_password_only_the_caller_knows(monkeypatch, capsys, redis_url):
    assert redis_command(["acl", "client", "--name", "web", "--file"]) == 0
    shown = capsys.readouterr()
    password = shown.err.rpartition(" ")[2].strip()
    assert shown.out.startswith("user web reset on #")
    assert password not in shown.out
    monkeypatch.setenv("ANTIPHON_ACL_PASSWORD", password)
    assert redis_command(["acl", "client", "--name", "web"]) == 0
    command = capsys.readouterr()
    assert command.out == shown.out.replace("user web", "ACL SETUSER web")
    assert command.err == ""
    with Redis.from_url(redis_url) as redis:
        redis.execute_command(*command.out.split())
        with Redis.from_url(redis_url.replace("://", f"://web:{password}@")) as web:
            assert web.ping()
        redis.execute_command("ACL", "DELUSER", "web")
