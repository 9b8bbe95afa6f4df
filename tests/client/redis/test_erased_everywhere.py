"""After an erasure, a search for the words of a user finds them in no key, no file of Redis and no log of a process."""

from __future__ import annotations

import pytest
from redis import Redis
from support.eventually import wait_until
from support.leaks import MARKER, dumped, holds
from support.operated import APP
from support.processes import COMMAND
from support.servers import RedisServer
from support.stage import Stage

from antiphon import Agent, Client

pytestmark = [pytest.mark.one_server, pytest.mark.short]
NAME = "ann"
ASKED = {"agent": "support", "tenant": "a", "user": NAME, "metadata": {"about": MARKER}}


@pytest.mark.parametrize("whom", [{"session": "s"}, {"tenant": "a"}, {"user": NAME}], ids=str)
def test_no_word_is_left_in_redis_its_files_and_the_logs(tmp_path, processes, whom):
    data, stage = tmp_path / "redis", Stage(tmp_path / "stage")
    data.mkdir()

    def in_files():
        return holds(b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file()))

    with (
        RedisServer("valkey", appendonly=True, data_dir=data, config={"rdbcompression": "no"}) as server,
        Client(server.url) as client,
        Redis.from_url(server.url) as redis,
    ):
        worker = processes.worker(server.url, "--app", APP, "--lease", "2", env=stage.env)
        gateway = processes.start(COMMAND, "serve", "--redis-url", server.url, "--port", "0", name="serve")
        worker.wait_for_output("takes turns")
        gateway.wait_for_output("[serving]")
        client.webhooks(tenant="a").set("hook", "https://127.0.0.1:1/hook", private=True)
        turns_of_every_kind(client)
        assert in_files()
        found = client.forget(**whom)
        assert found.left == []
        if "tenant" not in whom:  # webhooks are the tenant's
            client.webhooks(tenant="a").delete("hook")
        assert [key for key, value in dumped(redis).items() if holds(value)] == []
        redis.bgrewriteaof()
        wait_until(lambda: not in_files(), 30, "it is in no file")
        for process in (worker, gateway):
            assert not holds(process.output.encode())
        assert client.forget(**whom).left == []
        processes.close()


def turns_of_every_kind(client):
    """In one session: finished, failed and requeued, cancelled, delayed, scheduled and suspended ones."""
    client.submit("s", f"Hello {MARKER}", key=MARKER, **ASKED).result(30)
    failed = client.submit("s", f"fail:unauthorized {MARKER}", **ASKED)
    wait_until(lambda: failed.status() == "failed", 30, "it fails")
    failed.requeue()
    wait_until(lambda: failed.info().run == 2 and failed.status() == "failed", 30, "it fails again")
    refused = client.submit("s", MARKER, **{**ASKED, "agent": Agent("scripted", "any", system=MARKER)})
    wait_until(lambda: refused.status() == "failed", 30, "the App does not allow it")
    client.submit("s", MARKER, delay=3600, **ASKED).cancel(MARKER)
    client.submit("s", MARKER, delay=3600, **ASKED)
    client.schedules("s", tenant="a").set("daily", MARKER, every=3600, agent="support", user=NAME)
    waits = client.submit("s", f"tool:refund {MARKER}", **ASKED)
    wait_until(lambda: waits.status() == "suspended", 30, "it waits for an approval")
    client.submit("s", f"behind it {MARKER}", **ASKED)
