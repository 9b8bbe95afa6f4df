"""The environment of every test: its own servers, clean settings, coroutine tests, and no loose ends."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, _AsyncGeneratorContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("antiphon_demo") is None:
    raise pytest.UsageError("The package in demo/ is not installed: run `make setup`.")

import support.kinds
from hypothesis import settings
from redis import Redis
from simulation.seeds import FIRST_SEED, first_seed
from support.cells import open_cell
from support.clusters import Cluster
from support.coroutines import run_coroutine_test
from support.ensemble import open_ensemble
from support.eventually import wait_until
from support.leaks import leaked_keys
from support.limits import limited
from support.network import forbid_other_machines
from support.postgres import PostgresServer
from support.processes import Processes
from support.proxy import Proxy
from support.reports import encodable
from support.servers import Kind, RedisServer, installed_kinds
from support.signals import kept_handlers

from antiphon.client import AsyncClient
from antiphon.encryption import KEYS_VARIABLE, new_key

pytest_plugins = ["support.places", "support.runtimes"]

FOREIGN_SETTINGS = ("ANTIPHON_", "OPENAI_", "ANTHROPIC_", "RQ_")
UNCOMPILED = "PYTHONDONTWRITEBYTECODE"  # with it, each of the many processes would compile all modules again
SCRIPTS = Path(__file__).parent / "client" / "wire"  # tested on every kind of server
SHARED = Path(__file__).parent.parent.parent / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--server",
        choices=["default", "all", "valkey", "redis"],
        default="default",
        help="which servers: tests of scripts run on all that are installed, the rest on the bundled Valkey (default)",
    )

    parser.addoption("--sealed", action="store_true", help="run with encryption at rest")


def pytest_configure(config: pytest.Config) -> None:
    # An example that is slow on a busy machine is not a counter-example, and must not be shrunk for minutes.
    settings.register_profile("tests", deadline=None)
    settings.load_profile("tests")
    config.addinivalue_line("markers", "one_server: run on the first Redis server only, not on all installed")
    config.addinivalue_line("markers", "own_server: has its own Redis server, because its cell moves away")
    config.addinivalue_line("markers", "lasting_keys(*patterns): keys without a TTL that this test may leave")
    for name in ("benchmark", "vcr"):
        config.addinivalue_line("markers", f"{name}: of langchain-tests, whose plugin is left out")
    for name, meaning in support.kinds.MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    for name in list(os.environ):
        if name.startswith(FOREIGN_SETTINGS) or name.lower() in ("http_proxy", "https_proxy", "all_proxy"):
            del os.environ[name]
    os.environ.pop(UNCOMPILED, None)
    # A shell ignores SIGINT in background processes, and tests of interrupts would wait forever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--sealed"):
        os.environ[KEYS_VARIABLE] = new_key("tests")
    forbid_other_machines()


def pytest_report_header(config: pytest.Config) -> str:
    kinds = installed_kinds()
    missing = "" if "redis" in kinds else " (redis-server is not installed: the tests run on Valkey alone)"
    return f"redis servers: {', '.join(kinds)}{missing}\nsimulation: {FIRST_SEED}={first_seed()} repeats its schedules"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that uses Redis on the chosen servers."""
    chosen, kinds = metafunc.config.getoption("--server"), installed_kinds()
    if chosen in kinds:
        kinds = [chosen]
    one = chosen == "default" and SCRIPTS not in metafunc.definition.path.parents
    if one or metafunc.definition.get_closest_marker("one_server"):
        kinds = kinds[:1]
    for fixture in ("redis_server", "server_kind"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, kinds, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    support.kinds.mark(items)


def _most_seconds(item: pytest.Item) -> int:
    return int(item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with limited(f"the fixtures of {item.name}", _most_seconds(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with kept_handlers() as changed:
        result = yield
    assert not changed, f"{item.name} left handlers of its own for {', '.join(changed)}"
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with limited(f"the end of the fixtures of {item.name}", _most_seconds(item)):
        return (yield)


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects from garbage collection, which tests would otherwise scan."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    run_coroutine_test(_entered(function, {name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    processes = getattr(item, "funcargs", {}).get("processes")
    if report.failed and processes is not None:
        report.sections.extend(processes.report())
    return report


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Iterator[None]:
    return encodable((yield))


async def _entered(function: Any, given: dict[str, Any]) -> None:
    """Call a test with its fixtures; enter asynchronous context managers among them on its loop."""
    async with AsyncExitStack() as stack:
        for name, value in given.items():
            if isinstance(value, _AsyncGeneratorContextManager):
                given[name] = await stack.enter_async_context(value)
        await function(**given)


class ServerPool:
    """The servers of one test process, started when first used."""

    def __init__(self) -> None:
        self._servers: dict[Kind, RedisServer] = {}

    def get(self, kind: Kind) -> RedisServer:
        if kind not in self._servers:
            self._servers[kind] = RedisServer(kind).start()
        return self._servers[kind]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


@pytest.fixture(scope="session")
def server_pool() -> Iterator[ServerPool]:
    pool = ServerPool()
    yield pool
    pool.close()


@pytest.fixture
def redis_server(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[RedisServer]:
    """A running server that all tests of this process share: do not stop it or change its settings permanently.

    A test that harms its server starts its own: ``with RedisServer(server_kind) as server``. A test that moves the
    cell away is marked ``own_server``: open sessions of earlier tests would follow the cell, and stay where it went.
    """
    if request.node.get_closest_marker("own_server") is None:
        yield server_pool.get(request.param)
        return
    with RedisServer(request.param) as server:
        yield server


@pytest.fixture
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """The server to start, for a test that starts its own: ``with RedisServer(server_kind) as server``."""
    return request.param


@pytest.fixture
def redis_url(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[str]:
    """The URL of an empty Redis. Afterwards each key under ``ant:`` must have a time to live."""
    with Redis.from_url(redis_server.url) as redis:
        # A killed worker whose wait seems to continue would be given an entry of this test.
        wait_until(lambda: not redis.info("clients")["blocked_clients"], 10, "nothing waits at the server")
        redis.flushall()
    yield redis_server.url
    marker = request.node.get_closest_marker("lasting_keys")
    leaked = leaked_keys(redis_server.url, marker.args if marker else ())
    assert not leaked, f"Keys without a time to live: {', '.join(leaked)}"


@pytest.fixture
def cell(redis_url: str) -> Any:
    """A cell whose clock the test moves; unfinished turns are finished at the end."""
    return open_cell(redis_url)


@pytest.fixture
def ensemble(redis_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A client and a stage on this Redis: for workers on the loop of the test, and in ``processes`` if it has them."""
    processes = request.getfixturevalue("processes") if "processes" in request.fixturenames else None
    return open_ensemble(redis_url, tmp_path / "stage", processes)


@pytest.fixture
def client(redis_url: str) -> Any:
    """A client of this Redis."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[AsyncClient]:
        async with AsyncClient(redis_url) as client:
            yield client

    return opened()


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    """A plain connection to this Redis."""
    with Redis.from_url(redis_url) as connection:
        yield connection


@pytest.fixture
def other(server_kind: Kind) -> Iterator[str]:
    """The URL of a second, empty server."""
    with RedisServer(server_kind) as server:
        yield server.url


@pytest.fixture
def cluster(server_kind: Kind) -> Iterator[Cluster]:
    """A Redis Cluster of two primaries."""
    with Cluster(server_kind, primaries=2) as cluster:
        yield cluster


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """A network in front of the server, which the test disturbs."""
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts workers and other commands, and kills those still running at the end."""
    started = Processes(tmp_path)
    yield started
    started.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that all tests of this process share; skips if it is not installed."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def shared() -> Path:
    """The folder of recorded traffic and conversations next to the project; skips if there is none."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared with recorded traffic and conversations is not here")
    return SHARED


@pytest.fixture
def spans() -> Iterator[tuple[Any, Any]]:
    """A tracer, and the exporter with its spans. A test cannot leave its current span behind."""
    from opentelemetry import context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = context.attach(context.Context())
    yield provider.get_tracer("test"), exporter
    context.detach(before)
