"""After an erasure, a search for the words of a user finds them nowhere that Antiphon has written to.

It looks in every key of Redis and in its files, in the archive and the index of turns, in the store of a memory, in
exported traces, in metrics, and in the logs of all processes.
"""

from __future__ import annotations

import json
import urllib.request
from contextlib import suppress

import pytest
from redis import Redis
from support.eventually import wait_until
from support.leaks import CORE, MARKER, dumped, holds
from support.network import free_port
from support.processes import COMMAND
from support.receiver import Receiver
from support.remembering import APP
from support.servers import RedisServer
from support.stage import Stage

from antiphon import Agent, Client

pytestmark = [pytest.mark.one_server, pytest.mark.short]
NAME = "ann"
ASKED = {"agent": "support", "tenant": "a", "user": NAME, "metadata": {"about": MARKER}}
WITH_CONTENT = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}  # which other tools follow


class Deployment:
    """A Redis with its files, a worker with a memory, an archive and traces, and a gateway."""

    def __init__(self, server, processes, folder, collector):
        self.server, self.collector, self.stage = server, collector, Stage(folder / "stage")
        self.archive = f"sqlite:///{folder / 'archive' / 'sessions.db'}"
        self.folders = {name: folder / name for name in ("redis", "archive")}
        self.folders["memory"] = self.stage.directory / "memory"
        self.folders["archive"].mkdir()
        exports = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}", "OTEL_BSP_SCHEDULE_DELAY": "100",
        } | WITH_CONTENT  # fmt: skip
        same = [
            "--redis-url",
            server.url,
            "--archive",
            self.archive,
            "--traces",
            "true",
            "--log-level",
            "debug",
        ]
        self.status_ports = [free_port(), free_port()]
        worker, gateway = (["--status-port", str(port)] for port in self.status_ports)
        self.processes = [
            processes.start(COMMAND, "worker", *same, "--app", APP, "--lease", "2", *worker, name="worker",
                            env=self.stage.env | exports),
            processes.start(COMMAND, "serve", *same, "--port", "0", *gateway, name="serve", env=exports),
        ]  # fmt: skip
        self.processes[0].wait_for_output("takes turns")
        self.url = self.processes[1].wait_for_output("[serving]").split("[serving] ")[1].split()[0]

    def where(self):
        """All places in which the words are."""
        with Redis.from_url(self.server.url) as redis:
            found = [
                f"key {key}" for key, value in dumped(redis).items() if _has(value + (redis.dump(key) or b""))
            ]
        found += self.files_with_words()
        found += [f"output of {one.name}" for one in self.processes if holds(one.output.encode())]
        found += ["traces" for one in self.collector.received if holds(one.body)]
        return found + ["metrics" for port in self.status_ports if holds(_read(port))]

    def files_with_words(self):
        return [
            f"{name} {path.name}"
            for name, folder in self.folders.items()
            for path in folder.rglob("*")
            if path.is_file() and _has(path.read_bytes())
        ]

    def wait_until_nowhere(self):
        left = []

        def nowhere():
            left[:] = self.where()
            return not left

        with suppress(AssertionError):
            wait_until(nowhere, 5, interval=0.05)
        assert left == [], left

    def hurry(self):
        """Let copies in the archive be removed now, and not in a minute."""
        with Redis.from_url(self.server.url) as redis:
            redis.zadd("ant:forget", dict.fromkeys(redis.zrange("ant:forget", 0, -1), 1))
            redis.bgrewriteaof()


def _has(data):
    """Whether it has the word, also as an index of words has them: in small letters."""
    return holds(data) or CORE.lower().encode() in data


def _read(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read()


@pytest.mark.parametrize("whom", [{"session": "s"}, {"tenant": "a"}, {"user": NAME}], ids=str)
def test_no_word_is_left_anywhere(tmp_path, processes, whom):
    (tmp_path / "redis").mkdir()
    uncompressed = {"rdbcompression": "no"}
    with (
        RedisServer("valkey", appendonly=True, data_dir=tmp_path / "redis", config=uncompressed) as server,
        Receiver() as collector,
        Client(server.url, archive=f"sqlite:///{tmp_path}/archive/sessions.db") as client,
    ):
        deployment = Deployment(server, processes, tmp_path, collector)
        client.webhooks(tenant="a").set("hook", "https://127.0.0.1:1/hook", private=True)
        turns_of_every_kind(client, deployment.url)
        if "session" not in whom:
            turns_beside_those_of_others(client)
        places = {"key", "redis", "archive", "memory"}
        wait_until(lambda: {one.split()[0] for one in deployment.where()} >= places, 30, "it is everywhere")
        assert {one.split()[0] for one in deployment.where()} == places
        found = client.forget(**whom)
        assert found.left == []
        if "tenant" not in whom:  # webhooks are the tenant's
            client.webhooks(tenant="a").delete("hook")
        wait_until(lambda: not [one for one in deployment.where() if one.startswith("key")], 20)
        deployment.hurry()
        deployment.wait_until_nowhere()
        assert client.forget(**whom).left == []
        assert collector.received
        processes.close()
        assert deployment.files_with_words() == []


def turns_of_every_kind(client, gateway):
    """In one session: archived, finished, failed and requeued, cancelled, delayed, scheduled and suspended ones."""
    first = client.submit("s", f"Hello {MARKER}", key=MARKER, ttl=600, **ASKED)
    first.result(30)
    first.feedback(1.0, MARKER)
    _post(f"{gateway}/sessions/s/turns", {"input": f"By HTTP {MARKER}", **ASKED})
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


def turns_beside_those_of_others(client):
    """In a session of two users."""
    for user, text in (("bob", "From Bob"), (NAME, MARKER), ("bob", "Bob again")):
        client.submit("shared", text, ttl=600, **{**ASKED, "user": user, "metadata": None}).result(30)


def _post(url, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
