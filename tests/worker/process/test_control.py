"""What comes over the control channels, from whomever: a worker carries it out or leaves it, and goes on."""

import json

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError
from support.eventually import wait_until_async

from antiphon.errors import TurnCancelled

DEEP = b'{"command":' + b"[" * 100_000
CHANNELS = ["ant:control:{}", "rq:pubsub:{}"]
MESSAGES = {
    "a stop without an id": b'{"command":"stop-job"}',
    "a cancel without an id": b'{"command":"cancel"}',
    "an id that is a number": b'{"command":"stop-job","job_id":7}',
    "an id that is none": '{"command":"stop-job","job_id":"…:\\u0000"}'.encode(),
    "an unknown id": b'{"command":"stop-job","job_id":"nobody"}',
    "deep JSON": DEEP,
    "deep JSON that is closed": b'{"command":"cancel","turn_id":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "no JSON": b"stop it",
    "no UTF-8": b'{"command":"\xff\xfe"}',
    "no object": b'["drain"]',
    "null": b"null",
    "a command that is none": b'{"command":{"drain":1}}',
    "an unknown command": b'{"command":"explode"}',
    "a kill-horse": b'{"command":"kill-horse"}',
    "nothing": b" ",
    "a million bytes": b"x" * 1_000_000,
}


@pytest.mark.parametrize("channel", CHANNELS)
async def test_no_message_on_a_control_channel_ends_a_worker(channel, ensemble, redis_url):
    async with ensemble.worker() as worker:
        held = await ensemble.submit("s", "go on gate:g")
        await ensemble.waits("g")
        with Redis.from_url(redis_url) as redis:
            for message in MESSAGES.values():
                assert redis.publish(channel.format(worker.name), message) == 1
            assert not worker._draining.is_set()
            last = await ensemble.submit("t", "hang")
            await wait_until_async(lambda: ensemble.stage.notes("asked", text="hang"))
            command = {"command": "cancel" if "control" in channel else "stop-job", "reason": "enough"}
            redis.publish(
                channel.format(worker.name), json.dumps(command | {"turn_id": last.id, "job_id": last.id})
            )
        with pytest.raises(TurnCancelled):
            await last.result(60)
        ensemble.stage.open("g")
        assert (await held.result(60)).text


@pytest.mark.parametrize(
    ("channel", "command"), [(CHANNELS[0], "drain"), (CHANNELS[1], "shutdown")], ids=["ours", "RQ's"]
)
async def test_whoever_may_publish_there_drains_a_worker(channel, command, ensemble, redis_url):
    async with ensemble.worker() as worker:
        await wait_until_async(lambda: _heard(redis_url, channel.format(worker.name)))
        with Redis.from_url(redis_url) as redis:
            redis.publish(channel.format(worker.name), json.dumps({"command": command}))
        await wait_until_async(worker._draining.is_set)


def _heard(url, channel):
    with Redis.from_url(url) as redis:
        return redis.pubsub_numsub(channel)[0][1] == 1


async def test_who_may_not_publish_there_drains_nobody(ensemble, redis_url):
    """The rights of a user of a client: its own channels alone."""
    async with ensemble.worker() as worker:
        await wait_until_async(lambda: _heard(redis_url, CHANNELS[0].format(worker.name)))
        with Redis.from_url(redis_url) as redis:
            redis.execute_command(
                "ACL",
                "SETUSER",
                "client",
                "reset",
                "on",
                ">pw",
                "~ant:*",
                "~rq:*",
                "&ant:live:*",
                "+@all",
                "-@admin",
            )
            try:
                with Redis.from_url(redis_url, username="client", password="pw") as limited:
                    for channel in CHANNELS:
                        with pytest.raises(NoPermissionError):
                            limited.publish(channel.format(worker.name), '{"command":"drain"}')
                    assert limited.publish("ant:live:0:s", "x") == 0
            finally:
                redis.execute_command("ACL", "DELUSER", "client")
        assert not worker._draining.is_set()
