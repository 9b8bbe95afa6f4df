"""A Redis Cluster is refused at the first connection, by everything that connects, in one sentence."""

import sys
from pathlib import Path

import pytest
from redis import Redis
from support import forks
from support.network import free_port
from support.servers import RedisServer

from antiphon import AsyncClient, Client
from antiphon.errors import StoreUnsupported
from antiphon.wire.connection.open import open_redis
from antiphon.wire.errors import asked

COMMAND = str(Path(sys.executable).with_name("antiphon"))
REFUSED = "This server is part of a Redis Cluster"

pytestmark = pytest.mark.main_path


@pytest.fixture(params=["with all slots", "without slots"])
def cluster(request, server_kind):
    """A server in cluster mode. With all slots it is a whole cluster, on which most scripts would run."""
    config = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with RedisServer(server_kind, config=config) as server:
        if request.param == "with all slots":
            with Redis.from_url(server.url) as redis:
                redis.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        yield server


async def test_a_client_refuses_a_cluster_and_writes_nothing(cluster):
    async with AsyncClient(cluster.url) as client:
        for call in (
            client.submit("s", "Hi"),
            client.session("s").messages(),
            anext(client.subscribe("s")),
            anext(aiter(client.sessions())),
        ):
            with pytest.raises(StoreUnsupported, match=REFUSED):
                await call
    with Client(cluster.url) as client, pytest.raises(StoreUnsupported, match=REFUSED):
        client.submit("s", "Hi")
    with Redis.from_url(cluster.url) as redis:
        assert redis.dbsize() == 0


@pytest.mark.parametrize(
    "command",
    [["worker"], ["serve", "--port", "0"], ["submit", "s", "Hi"], ["sessions"], ["redis", "check"]],
    ids=lambda command: command[0],
)
def test_every_command_refuses_a_cluster_in_one_sentence(cluster, command):
    done = forks.run([COMMAND, *command, "--redis-url", cluster.url])
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if REFUSED in line]
    assert "takes turns" not in done.stdout + done.stderr
    assert "cells" in line, "what to do"


@pytest.mark.one_server
async def test_a_server_is_asked_once_for_each_connection(redis_url):
    redis = open_redis(redis_url)
    try:
        async with redis.client() as one:
            await asked(one.config_resetstat())
            for _ in range(3):
                await asked(redis.hget("ant:session:s", "seq"))  # over the connection of the scripts
            assert (await asked(one.info("commandstats")))["cmdstat_hello"]["calls"] == 1
    finally:
        await redis.aclose()


async def test_a_user_who_may_not_ask_and_a_server_that_does_not_know_are_served(server_kind):
    with RedisServer(server_kind, config={"rename-command": 'HELLO ""'}) as server:
        with Redis.from_url(server.url, protocol=2) as redis:
            redis.execute_command("ACL", "SETUSER", "u", "on", ">secret", "~*", "&*", "+@all", "-get")
        redis = open_redis(server.url.replace("://", "://u:secret@"))
        assert await asked(redis.hget("ant:session:s", "seq")) is None
        await redis.aclose()
