"""All scripts of a process share one connection: answers find their callers, whatever becomes of it."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from support.eventually import wait_until_async

from antiphon.wire.connection import resp as direct
from antiphon.wire.connection.open import open_redis
from antiphon.wire.connection.resp import PlainReader

pytestmark = pytest.mark.one_server

ECHO = "return ARGV[1]"
COUNT = "return redis.call('INCR', KEYS[1])"


async def echo(redis, value):
    return await redis.execute_command("EVAL", ECHO, 0, value)


@pytest.mark.parametrize("packing", ["hiredis", "plain"])
async def test_answers_find_their_callers_over_one_connection(packing, redis_url, proxy, monkeypatch):
    if packing == "plain":
        monkeypatch.setattr(direct, "pack_command", None)
        monkeypatch.setattr(direct, "reply_reader", PlainReader)
    async with open_redis(proxy.url) as redis:
        answers = await asyncio.gather(*[echo(redis, f"{n}" * 1000) for n in range(200)])
        assert answers == [f"{n}".encode() * 1000 for n in range(200)]
        assert proxy.accepted == 1


async def test_a_caller_that_gives_up_takes_nobody_elses_answer(redis_url, proxy):
    async with open_redis(proxy.url) as redis:
        await echo(redis, "warm")
        proxy.blackhole()
        calls = [asyncio.create_task(echo(redis, str(n))) for n in range(5)]
        await asyncio.sleep(0)
        calls[2].cancel()
        proxy.heal()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [a for n, a in enumerate(answers) if n != 2] == [b"0", b"1", b"3", b"4"]
        assert isinstance(answers[2], asyncio.CancelledError)
        assert await echo(redis, "after") == b"after"
        assert proxy.accepted == 1


async def test_what_loses_its_answer_is_sent_again(redis_url, proxy):
    async with open_redis(proxy.url) as redis:
        await echo(redis, "warm")
        proxy.drop_reply(b"INCR")
        answers = await asyncio.gather(
            echo(redis, "a"), redis.execute_command("EVAL", COUNT, 1, "ant:test_clock"), echo(redis, "b")
        )
        assert answers[0::2] == [b"a", b"b"]
        assert answers[1] == 2  # done twice: scripts bear it
        assert proxy.lost_replies == 1
        await redis.delete("ant:test_clock")


async def test_without_retries_a_lost_answer_is_an_error(redis_url, proxy):
    async with open_redis(proxy.url, retries=0) as redis:
        await echo(redis, "warm")
        proxy.drop_reply(b"EVAL")
        with pytest.raises(RedisConnectionError):
            await echo(redis, "lost")
        assert await echo(redis, "after") == b"after"


async def test_an_answer_that_takes_too_long_closes_the_connection(redis_url, proxy):
    async with open_redis(proxy.url, retries=0, timeout_seconds=1) as redis:
        await echo(redis, "warm")
        proxy.blackhole()
        with pytest.raises(RedisTimeoutError):
            await echo(redis, "late")
        proxy.heal()
        assert await echo(redis, "after") == b"after"
        assert proxy.accepted == 2
        await wait_until_async(lambda: proxy.connections == 1, 5, "the first connection is closed")


async def test_one_scripts_error_is_its_callers_alone(redis_url, proxy):
    async with open_redis(proxy.url) as redis:
        failed, fine = await asyncio.gather(
            redis.execute_command("EVAL", "return redis.call('GET')", 0), echo(redis, "x"),
            return_exceptions=True,
        )  # fmt: skip
        assert isinstance(failed, ResponseError)
        assert fine == b"x"
        with pytest.raises(DataError):
            await echo(redis, object())
        assert await echo(redis, "after") == b"after"
        assert proxy.accepted == 1


async def test_closing_fails_what_is_under_way_and_leaves_no_connection(redis_url, proxy):
    redis = open_redis(proxy.url, retries=0)
    await echo(redis, "warm")
    proxy.blackhole()
    call = asyncio.create_task(echo(redis, "under way"))
    await asyncio.sleep(0)
    await redis.aclose()
    with pytest.raises(RedisConnectionError):
        await call
    proxy.heal()
    await wait_until_async(lambda: proxy.connections == 0, 5, "no connection is left")


@pytest.mark.parametrize("steps", range(1, 60, 3))
async def test_closing_while_a_connection_is_opened_leaves_none(steps, redis_url, proxy):
    """At whatever step of the way the caller is: the test's own check finds a task that goes on."""
    redis = open_redis(proxy.url)
    calls = [asyncio.create_task(echo(redis, str(n))) for n in range(2)]
    for _ in range(steps):
        await asyncio.sleep(0)
    await redis.aclose()
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, bytes | RedisConnectionError)
    await wait_until_async(lambda: proxy.connections == 0, 5, "no connection is left")


async def test_a_command_under_way_when_it_is_closed_opens_no_other_connection(redis_url, proxy):
    redis = open_redis(proxy.url)
    await echo(redis, "warm")
    proxy.blackhole()
    calls = [asyncio.create_task(echo(redis, str(n))) for n in range(3)]
    await asyncio.sleep(0)
    await redis.aclose()
    proxy.heal()
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, RedisConnectionError)
    assert proxy.accepted == 1


async def test_what_a_command_opened_while_its_client_was_closed_is_closed_when_the_command_is_done(
    redis_url, proxy
):
    redis = open_redis(proxy.url)
    await redis.ping()
    proxy.blackhole()
    command = asyncio.create_task(redis.get("key"))
    await wait_until_async(lambda: redis.connection_pool.get_connection_count()[1][0] == 1)
    await redis.aclose()
    proxy.heal()
    await asyncio.gather(command, return_exceptions=True)
    await wait_until_async(lambda: proxy.connections == 0, 5, "no connection is left")


def test_a_client_that_comes_to_another_loop_connects_there(redis_url):
    redis = open_redis(redis_url)

    async def first():
        assert await echo(redis, "one") == b"one"

    async def second():
        assert await echo(redis, "two") == b"two"
        await redis.aclose()

    async def leave(wire):
        wire.close(RedisConnectionError("Its loop ends."))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    first_wire = redis._line._wire
    asyncio.run(second())
    loop.run_until_complete(leave(first_wire))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
