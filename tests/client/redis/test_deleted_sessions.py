"""A deleted session leaves no word of its turns, in no key of Redis, and what comes late brings none back."""

from __future__ import annotations

import pytest
from redis import Redis
from support.eventually import wait_until, wait_until_async
from support.here import running_worker
from support.leaks import MARKER, dumped, holds
from support.servers import RedisServer

from antiphon import Agent, AsyncClient, Client
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.errors import TurnDeleted, WrongTenant
from antiphon.session.background import call
from antiphon.wire.editing import erase_turns
from antiphon_worker import eraser

pytestmark = pytest.mark.one_server


def leaks(url):
    with Redis.from_url(url) as redis:
        return [key for key, data in dumped(redis).items() if holds(data)]


@pytest.fixture
def client(redis_url):
    with Client(redis_url) as found:
        yield found


def cancelled(client, session="s", **options):
    """A turn that has ended, without a worker."""
    turn = client.submit(session, MARKER, agent=Agent("scripted", "any", system=MARKER), **options)
    turn.cancel(MARKER)
    return turn


@pytest.mark.parametrize("keys", ["", new_key("k1")], ids=["in the clear", "with keys"])
def test_nothing_of_a_deleted_turn_is_left_and_it_says_so(redis_url, keys, monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, keys)
    with Client(redis_url) as client:
        _nothing_is_left(client, redis_url, keys)


def _nothing_is_left(client, redis_url, keys):
    turn = cancelled(client, key=MARKER, metadata={"about": MARKER})
    later = cancelled(client)
    assert keys or leaks(redis_url)
    client.session("s").delete()
    assert leaks(redis_url) == []
    reads = (later.result, turn.result, turn.info, turn.status, turn.runs, lambda: list(turn.stream()))
    for use in (*reads, turn.requeue):
        with pytest.raises(TurnDeleted, match="deleted with its session"):
            use()
    with pytest.raises(TurnDeleted):
        client.turn(turn.id)
    [outcome] = client.results([turn])
    assert isinstance(outcome, TurnDeleted)
    assert list(client.failed()) == []


def test_a_key_of_a_deleted_turn_starts_nothing(client, redis_url):
    cancelled(client, key="k")
    client.session("s").delete()
    for again in (False, True):
        with pytest.raises(TurnDeleted):
            client.submit("s", "other words", agent="any", key="k", retry_failed=again)
    with Redis.from_url(redis_url) as redis:
        assert redis.zcard("ant:sessions") == 0
        assert not redis.exists("rq:queue:antiphon")


def test_delayed_turns_and_those_that_others_pass_by_are_erased_too(client, redis_url):
    turn = client.submit("s", MARKER, agent=Agent("scripted", "any"), delay=3600)
    client.session("s").delete()
    assert leaks(redis_url) == []
    with pytest.raises(TurnDeleted):
        turn.result(1)


@pytest.mark.parametrize("junk", ["1.5", "1e999", MARKER])
def test_numbers_of_an_erased_turn_are_whole(client, redis_url, junk):
    turn = cancelled(client)
    numbers = ("run", "attempt", "queued_seq", "last_seq")
    with Redis.from_url(redis_url) as redis:
        redis.hset(f"ant:turn:{turn.id}", mapping=dict.fromkeys(numbers, junk))
        client.session("s").delete()
        assert redis.hmget(f"ant:turn:{turn.id}", numbers) == [b"0"] * 4
    with pytest.raises(TurnDeleted):
        turn.info()


@pytest.mark.parametrize("how", ["more turns than are listed", "its life is over", "it began again"])
def test_turns_that_the_session_does_not_list_are_erased(client, redis_url, how):
    turns = [cancelled(client) for _ in range(3)]
    other = cancelled(client, "other")
    with Redis.from_url(redis_url) as redis:
        if how == "more turns than are listed":
            redis.lpop("ant:turns:s")
            redis.rpush("ant:turns:s", *(f"x{number}" for number in range(1000)))
        else:
            redis.delete("ant:turns:s", "ant:events:s", "ant:history:s")
            redis.pexpire("ant:session:s", 60_000)
    if how == "it began again":
        cancelled(client)
    client.session("s").delete()
    for turn in turns:
        with pytest.raises(TurnDeleted):
            turn.info()
    assert other.info().input[0].text == MARKER


@pytest.mark.parametrize("how", ["it has gone", "it began again"])
@pytest.mark.parametrize("tenant", [None, "a"])
def test_no_word_of_an_earlier_session_is_read_before_a_worker_has_erased_it(client, redis_url, how, tenant):
    turn, failed = cancelled(client, tenant=tenant), cancelled(client, tenant=tenant)
    other = cancelled(client, "other", tenant=tenant)
    with Redis.from_url(redis_url) as redis:
        redis.hset(f"ant:turn:{failed.id}", "status", "failed")
        redis.zadd("rq:failed:antiphon", {failed.id: 1 << 31})
        redis.delete(*(f"ant:{kind}:s" for kind in ("session", "turns", "events", "history")))
    assert [one.turn_id for one in client.failed()] == [failed.id]
    later = cancelled(client, tenant=tenant) if how == "it began again" else None
    client.session("s", tenant=tenant).delete()
    assert leaks(redis_url), "no worker has searched all keys yet"
    for use in (turn.info, turn.result, turn.status, turn.runs, lambda: list(turn.stream())):
        with pytest.raises(TurnDeleted):
            use()
    with pytest.raises(TurnDeleted):
        client.turn(turn.id, tenant=tenant)
    [outcome] = client.results([failed])
    assert isinstance(outcome, TurnDeleted)
    assert list(client.failed()) == []
    for kept in (other, cancelled(client, tenant=tenant)):
        assert kept.info().input[0].text == MARKER
    assert later is None or leaks(redis_url)


def test_a_later_session_keeps_its_turns_where_the_clock_was_put_back(client, redis_url):
    client.session("s").delete()
    turn = cancelled(client)
    with Redis.from_url(redis_url) as redis:
        hour_ahead = redis.time()[0] * 1000 + 3_600_000
        redis.hset("ant:erasing", mapping={"s": hour_ahead, "": 0})
        call(searched(redis_url))
        redis.delete("ant:erasing")
    assert turn.info().input[0].text == MARKER


def test_a_deletion_after_the_clock_was_put_back_keeps_the_time_of_the_one_before(client, redis_url):
    with Redis.from_url(redis_url) as redis:
        hour_ahead = b"%d" % (redis.time()[0] * 1000 + 3_600_000)
        redis.hset("ant:erasing", mapping={"s": hour_ahead, "": 0})
        client.session("s").delete()
        assert redis.hget("ant:erasing", "s") == hour_ahead
        redis.delete("ant:erasing")


async def searched(redis_url):
    async with AsyncClient(redis_url) as client:
        assert await erase_turns(client.connections.cell_of_session("s"), if_due=True) is not None


def test_what_a_worker_of_rqs_own_writes_late_is_removed(client, redis_url):
    turn = cancelled(client)
    client.session("s").delete()
    with Redis.from_url(redis_url) as redis:
        redis.hset(f"rq:job:{turn.id}", mapping={"status": "failed", "exc_info": MARKER})
        redis.xadd(f"rq:results:{turn.id}", {"exc_string": MARKER})
        redis.zadd("rq:failed:antiphon", {turn.id: 1 << 31})
        call(reaped(redis_url))
        assert leaks(redis_url) == []
        assert redis.zcard("rq:failed:antiphon") == 0


async def reaped(redis_url):
    async with AsyncClient(redis_url) as client:
        await client.connections.cell_of_session("s").reap(queues=["antiphon"])


def test_a_session_of_another_tenant_is_not_deleted_meanwhile(client):
    cancelled(client, tenant="a")
    with pytest.raises(WrongTenant):
        client.session("s", tenant="b").delete()
    assert client.session("s", tenant="a").delete()


def test_a_deleted_turn_of_another_tenant_does_not_show(client):
    turn = cancelled(client, tenant="a")
    client.session("s", tenant="a").delete()
    with pytest.raises(WrongTenant):
        client.turn(turn.id, tenant="b")
    with pytest.raises(TurnDeleted):
        client.turn(turn.id, tenant="a")


def test_nothing_is_left_in_the_log_of_redis_after_it_was_rewritten(tmp_path):
    def written():
        return holds(b"".join(path.read_bytes() for path in tmp_path.rglob("*") if is_kept(path)))

    def is_kept(path):
        return path.is_file() and not path.name.startswith("temp-")  # those Redis renames at any moment

    config = {"rdbcompression": "no"}
    with (
        RedisServer("valkey", appendonly=True, data_dir=tmp_path, config=config) as server,
        Client(server.url) as client,
        Redis.from_url(server.url) as redis,
    ):
        cancelled(client)
        wait_until(written, description="it is in the log")
        client.session("s").delete()
        redis.bgrewriteaof()
        wait_until(lambda: not written(), description="it is in no file")


async def test_a_worker_completes_a_deletion_whose_process_has_died(redis_url, monkeypatch):
    monkeypatch.setattr(eraser, "PAUSE_SECONDS", 0.02)
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        turn = await client.submit("s", MARKER, agent=Agent("scripted", "any"), key=MARKER)
        await turn.result(20)
        cell = client.connections.cell_of_session("s")
        await cell.redis.delete("ant:turns:s")
        await cell.redis.hset("ant:session:s", "earlier", 1)
        assert (await cell.run("editing/delete", "s", ""))[2] == b"1"  # and here its process ends
        assert leaks(redis_url)
        await cell.redis.hset("ant:erasing", "", 0)  # the minute is over
        await wait_until_async(lambda: not leaks(redis_url), 20, "nothing of it is left")
        with pytest.raises(TurnDeleted):
            await turn.info()
