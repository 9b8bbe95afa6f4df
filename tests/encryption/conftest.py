"""The fixture ``deployment``: workers whose Redis is watched, once with keys and once without."""

import pytest
from redis import Redis
from support.leaks import Recorder, dumped, holds
from support.runtimes import Workers

from antiphon import Client
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.session.background import call


@pytest.fixture
def keys(monkeypatch):
    """Keys in the environment."""
    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))


@pytest.fixture(params=["sealed", "clear"])
def deployment(request, redis_server, monkeypatch):
    """Workers and their Redis. Afterwards nothing that was written stands there, or was ever sent there, in the clear.

    Without keys the same must be found: else the scenario proves nothing.
    """
    if request.param == "sealed":
        monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))
    else:
        monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    with Redis.from_url(redis_server.url) as redis:
        redis.flushall()
        recorder = Recorder(redis_server.url)
        workers = Workers(redis_server.url)
        workers.sealed = request.param == "sealed"
        call(workers.aclose())  # what an earlier test has left open has no keys, or others
        workers.start()
        yield workers
        workers.stop()
        call(workers.aclose())  # with the keys of this test
        leaks = [key for key, data in dumped(redis).items() if holds(data)]
        sent = [command[:300] for command in recorder.stop() if holds(command)]
        if workers.sealed:
            assert (leaks, sent) == ([], [])
        else:
            assert leaks, "the scenario writes nothing that is to be sealed"
            assert sent
            with Client(redis_server.url) as client:
                for session in redis.zrange("ant:sessions", 0, -1):
                    client.session(session.decode()).delete()
            left = [key for key, data in dumped(redis).items() if holds(data)]
            stays = b"antiphon:saved:", b"ant:event_data:"
            assert all(key.startswith(stays) for key in left), (
                "an archiver removes the copy in a minute, and a sent event is kept for a day"
            )
