"""A Valkey, gateways and workers that a program in another language starts, kills and calls, line by line.

    python -m support.node_stand < {"id": 1, "do": "up"} ... > {"id": 1, "gives": {...}}

The suites of ``client/node`` are such programs. Everything ends with the input.
"""

import json
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import Redis
from support.eventually import wait_until
from support.leaks import Recorder
from support.network import free_port
from support.processes import COMMAND, Process, Processes
from support.proxy import Proxy
from support.servers import RedisServer
from support.stage import Stage

from antiphon import Client
from antiphon_gateway.access.caller import hash_of, new_key

SECRET = "a secret that every replica has, 32 bytes"


class Stand:
    """One of each. The public methods can be called by name."""

    def __init__(self, directory: Path, server: RedisServer, proxy: Proxy, *flags: str) -> None:
        self._server, self._proxy = server, proxy
        self._processes = Processes(directory)
        self._stage = Stage(directory / "stage")
        self._port = free_port()
        self._key = new_key()
        keys = directory / "keys.toml"
        keys.write_text(
            f'[keys.all]\nhash = "{hash_of(self._key)}"\ntenant = "*"\nrights = ["read", "write", "admin"]\n'
        )
        self._flags = ["--redis-url", server.url, "--port", str(self._port), "--keys", str(keys), *flags]
        self._gateway: Process | None = None
        self._worker: Process | None = None
        self._recorder: Any = None

    def up(self) -> dict[str, str]:
        """Start everything, and return the addresses."""
        self.start_gateway()
        self.start_worker()
        redis, proxied = self._server.url, self._proxy.url
        return {
            "gateway": f"http://127.0.0.1:{self._port}",
            "key": self._key,
            "redis": redis,
            "proxied": proxied,
        }

    def start_gateway(self) -> None:
        env = {"ANTIPHON_GATEWAY_SECRET": SECRET}
        self._gateway = self._processes.start(COMMAND, "serve", *self._flags, name="serve", env=env)
        self._gateway.wait_for_output("[serving]")

    def kill_gateway(self) -> None:
        _running(self._gateway).kill()

    def stop_gateway(self) -> None:
        """Stop the gateway as an operator does."""
        _running(self._gateway).terminate()

    def start_worker(self) -> None:
        self._worker = self._processes.worker(self._server.url, "--lease", "2", env=self._stage.env)
        self._worker.wait_for_output("takes turns")

    def kill_worker(self) -> None:
        _running(self._worker).kill()

    def open(self, gate: str) -> None:
        self._stage.open(gate)

    def waits(self, gate: str, times: int = 1) -> None:
        """Return when ``times`` answers have reached this gate."""
        wait_until(
            lambda: len(self._stage.notes("waits", gate=gate)) >= times, 20, f"an answer waits at {gate}"
        )

    def asked(self, text: str) -> int:
        """Return how often the model was asked this."""
        return len(self._stage.notes("asked", text=text))

    def cut(self) -> None:
        """Cut all connections through the proxy."""
        self._proxy.cut()

    def refuse(self) -> None:
        self._proxy.refuse()

    def blackhole(self) -> None:
        self._proxy.blackhole()

    def lose_reply(self, matching: str) -> None:
        """Lose the next reply to a command with this text, and the connection."""
        self._proxy.drop_reply(matching.encode())

    def heal(self) -> None:
        self._proxy.heal()

    def connections(self, number: int) -> None:
        """Return when the proxy has this number of connections."""
        wait_until(
            lambda: self._proxy.connections == number,
            10,
            f"{number} connections, not {self._proxy.connections}",
        )

    def submit(self, session: str, text: str, key: str, agent: Any) -> str:
        """Submit a turn with the Python client, and return its id."""
        from antiphon.input.request import AgentSpec

        with Client(self._server.url) as client:
            return client.submit(
                session, text, key=key, agent=agent if isinstance(agent, str) else AgentSpec(**agent)
            ).id

    def delete(self, session: str) -> None:
        with Client(self._server.url) as client:
            client.session(session).delete()

    def record(self) -> None:
        """Record all commands of Redis from now on."""
        self._recorder = Recorder(self._server.url)

    def reads(self, session: str) -> None:
        """Return when a reader has read which session has this id, and end the recording."""
        assert self._recorder is not None
        read = f'"ant:session:{session}" "seq"'.encode()

        def has_read() -> bool:
            return any(read in line and b" lua]" not in line for line in self._recorder.heard())

        wait_until(has_read, 20, "the session is read")
        self._recorder.stop()

    def end_session(self, session: str, how: str) -> None:
        """Let a session be ``deleted``, be ``expired``, or be ``gone``, as if it expired more than an hour ago."""
        if how == "deleted":
            self.delete(session)
            return
        with Redis.from_url(self._server.url) as redis:
            redis.delete(*(f"ant:{kind}:{session}" for kind in ("history", "events", "turns")))
            redis.pexpire(f"ant:session:{session}", 1 if how == "gone" else 1_800_000)
            if how == "gone":
                wait_until(lambda: not redis.exists(f"ant:session:{session}"), 5, "it is gone")

    def close(self) -> None:
        self._processes.close()


def _running(process: Process | None) -> Process:
    assert process is not None, "it was never started"
    return process


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, RedisServer() as server, Proxy(server.port) as proxy:
        stand = Stand(Path(directory), server, proxy)
        try:
            for line in sys.stdin:
                asked = json.loads(line)
                print(
                    json.dumps(
                        {"id": asked["id"], **_done(getattr(stand, asked["do"]), asked.get("with", {}))}
                    ),
                    flush=True,
                )
        finally:
            stand.close()


def _done(call: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"gives": call(**arguments)}
    except Exception:  # noqa: BLE001 - the program that asked fails with it
        return {"failed": re.sub(r"\S*/", "", traceback.format_exc(limit=4))}


if __name__ == "__main__":
    main()
