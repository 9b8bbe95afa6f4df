"""What a peer needs in addition to Redis while it is measured: a database or server, a port and a folder."""

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from support.eventually import wait_until
from support.network import free_port
from support.postgres import PostgresServer, postgres_binaries
from support.processes import Process

from bench.peers.catalogue import Peer, env_of, folder
from bench.stand import Stand

SERVER_SECONDS = 5.0


@contextmanager
def surroundings(peer: Peer, built: Stand) -> Iterator[dict[str, str]]:
    """Start the service of a peer, and yield the environment of its processes."""
    folder = tempfile.mkdtemp(prefix="antiphon-bench-")
    env = {**env_of(peer), "PEER_PORT": str(free_port()), "PEER_FOLDER": folder}
    try:
        with SERVICES[peer.service](env, built):
            yield env
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_it_listens(server: Process, port: int, timeout: float) -> None:
    """Wait until the server listens; fail as soon as it has ended."""

    def there() -> bool:
        assert server.running, f"{server.name} has ended"
        return _listens(port)

    wait_until(there, timeout, f"{server.name} listens", interval=0.05)


@contextmanager
def _postgres(env: dict[str, str], _: Stand) -> Iterator[None]:
    if postgres_binaries() is None:
        raise RuntimeError("PostgreSQL's server is not installed: apt-get install postgresql")
    with PostgresServer() as server:
        env["DBOS_SYSTEM_DATABASE_URL"] = server.new_database()
        yield


@contextmanager
def _temporal(env: dict[str, str], built: Stand) -> Iterator[None]:
    """Run Temporal's development server, which keeps everything in memory."""
    program = str(folder("temporal") / "bin" / "temporal")
    port = env["PEER_PORT"]
    server = built.start(program, "server", "start-dev", "--headless", "--port", port, name="temporal-server")
    wait_until_it_listens(server, int(port), SERVER_SECONDS)
    yield


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


SERVICES: dict[str, Callable[[dict[str, str], Stand], AbstractContextManager[None]]] = {
    "": lambda _, __: nullcontext(),
    "postgres": _postgres,
    "temporal": _temporal,
}
