"""A cancellation ends a call to Redis wherever it strikes: services stop, time-outs hold."""

import asyncio

import pytest

from antiphon.wire.connection.open import open_like, open_redis


@pytest.mark.parametrize("opened", ["by URL", "like another client"])
async def test_a_call_can_be_cancelled_at_every_moment(redis_url, opened):
    redis = open_redis(redis_url)
    if opened == "like another client":
        redis = open_like(redis)
    async with redis:
        await redis.ping()
        for steps in range(25):
            call = asyncio.create_task(redis.blpop(["nothing"], timeout=5))
            for _ in range(steps):
                await asyncio.sleep(0)
            assert call.cancel()
            done, _ = await asyncio.wait([call], timeout=2)
            assert done, f"cancelled after {steps} steps of the loop, the call goes on"
            assert call.cancelled()
