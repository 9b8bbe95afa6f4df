"""``antiphon serve``: runs the gateway in uvicorn until SIGTERM."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import uvicorn

from antiphon.bytestores.of_process import bytes_of_process
from antiphon.cli.arguments import add_json, add_redis, add_settings, command_parser, print_json, redis_urls
from antiphon.client import AsyncClient
from antiphon.errors import SettingsError, StoreError, StoreUnsupported
from antiphon.redis.cells import prefix_of
from antiphon.telemetry import set_up_logging
from antiphon.wire.connection.open import open_redis, redact
from antiphon.wire.errors import asked
from antiphon_gateway.access.caller import hash_of, new_key
from antiphon_gateway.app import Gateway, gateway
from antiphon_gateway.http.connection import Connection, SocketConnection
from antiphon_gateway.observing.loop_lag import STUCK_SECONDS, LoopLag
from antiphon_gateway.settings import GatewaySettings

log = logging.getLogger("antiphon.gateway")

# How long a reader whose host is lost keeps its stream, if the system has ``TCP_USER_TIMEOUT``.
UNANSWERED_MS = 60_000
IDLE_SECONDS = 75
"""How long a connection stays open between requests: longer than load balancers and clients keep theirs (60 s)."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(argv: list[str]) -> int:
    """Serve sessions and turns over HTTP until stopped

    Every option is also a variable: --port is ANTIPHON_GATEWAY_PORT. An option takes precedence. SIGTERM drains:
    streams end, each at a cursor from which its reader goes on at another gateway. Without keys it listens on this
    machine only. `antiphon serve --new-key` makes a key. `GET /openapi.json` describes what can be called.
    """
    parser = command_parser(serve)
    parser.usage = "antiphon serve [OPTIONS]"
    add_settings(parser, GatewaySettings)
    parser.add_argument("--new-key", action="store_true", help="print a new key and its hash, and exit")
    add_json(parser, "with --new-key: print the key and its hash as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    if options.new_key:
        return _print_key(json=options.json)
    settings = GatewaySettings.load(vars(options))
    set_up_logging(settings.log_level, settings.log_format)
    urls = redis_urls(options.redis_url)
    with asyncio.Runner(loop_factory=_quicker_loop()) as runner:
        bytes_of_process()  # an invalid URL ends the command
        client = AsyncClient(urls, prefix=options.prefix, archive=settings.archive or None)
        if client.connections.archive is not None:
            client.connections.archive.open()
        runner.run(_serve(settings, client, urls, prefix_of(options.prefix)))
    return 0


def _quicker_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop, or None if it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(settings: GatewaySettings, client: AsyncClient, urls: list[str], prefix: str) -> None:
    access = settings.access()
    async with client:
        status = _Status(settings, urls, prefix)
        app = gateway(
            client, access=access, limits=settings.limits, cors=settings.origins, metrics=status.metrics,
            traces=_traces(settings), a2a=settings.agents,
        )  # fmt: skip
        with _listening(settings) as listening, status.served(app):
            port = listening.getsockname()[1]
            log.info("http://%s:%d", settings.host, port, extra={"action": "serving"})
            log.info("http://%s:%d/live", settings.host, port, extra={"action": "page"})
            if not access.closed:
                log.warning(
                    "No keys are configured: only this machine can connect, and every program on it has all rights.",
                    extra={"action": "no_keys"},
                )
            config = uvicorn.Config(
                app, http=Connection, limit_concurrency=settings.connections, ws=SocketConnection,
                ws_max_size=settings.body_bytes, ws_ping_interval=20.0, access_log=False, proxy_headers=False,
                server_header=False, timeout_keep_alive=IDLE_SECONDS,
                headers=[("keep-alive", f"timeout={IDLE_SECONDS}")],
                log_config=None, log_level="warning", timeout_graceful_shutdown=max(1, round(settings.drain)),
            )  # fmt: skip
            async with reaching(urls):
                await _Server(config, app).serve(sockets=[listening])
        log.info("all streams have ended", extra={"action": "stopped"})


class _Status:
    """The status port of this process, if it has one."""

    def __init__(self, settings: GatewaySettings, urls: list[str], prefix: str) -> None:
        self._settings = settings
        self._urls, self._prefix = urls, prefix
        self._lag = LoopLag()
        self.metrics: Any = None
        if settings.status_port and importlib.util.find_spec("prometheus_client") is not None:
            from antiphon.metrics import CellMetrics, ProcessMetrics
            from antiphon_gateway.observing.metrics import GatewayMetrics

            self.metrics = GatewayMetrics()
            self.metrics.registry.register(CellMetrics(urls, prefix))
            self.metrics.registry.register(ProcessMetrics("gateway"))

    @contextmanager
    def served(self, app: Gateway) -> Generator[None]:
        """Serve the status port while the context is open. Raises ``SettingsError``."""
        if not self._settings.status_port:
            yield
            return
        from antiphon.status import WriteCheck, serving_status

        refused = WriteCheck(self._urls, self._prefix)
        if self.metrics is not None:
            self.metrics.read(lambda: app.streams, lambda: self._lag.seconds)
        with (
            self._lag.watched(),
            serving_status(
                self._settings.status_host, self._settings.status_port, self._unhealthy,
                lambda: "It drains." if app.draining else refused(), self.metrics and self.metrics.app(),
            ),
        ):  # fmt: skip
            yield

    def _unhealthy(self) -> str:
        late = self._lag.seconds
        return f"Its event loop stands still for {late:.0f} s." if late > STUCK_SECONDS else ""


def _traces(settings: GatewaySettings) -> Any:
    """Return the object that creates request spans, or None. Raises ``MissingPackage``."""
    if not settings.traces:
        return None
    from antiphon.telemetry import tracer_of_environment

    tracer = tracer_of_environment("antiphon-gateway")
    from antiphon_gateway.observing.traces import GatewayTraces

    return GatewayTraces(tracer)


class _Server(uvicorn.Server):
    """Drains the gateway at shutdown, and exits with code 0."""

    def __init__(self, config: uvicorn.Config, app: Gateway) -> None:
        super().__init__(config)
        self._gateway = app

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Begin to drain at the first signal, and end at once at the second."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("streams end, each at its cursor", extra={"action": "draining"})
        self._gateway.drain()
        await super().shutdown(sockets)


def _listening(settings: GatewaySettings) -> socket.socket:
    """Return a socket that listens. Raises ``SettingsError``."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as exc:
        why = str(exc.strerror).partition(" (while ")[0]  # without the address, which Python repeats
        raise SettingsError(
            f"The gateway cannot listen on {settings.host}:{settings.port} ({why}): choose another port with --port, "
            "or address with --host."
        ) from exc
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)
    return listening


def _print_key(*, json: bool) -> int:
    key = new_key()
    if json:
        print_json([{"key": key, "hash": hash_of(key)}])
        return 0
    print(f'{key}\n\n[keys.NAME]\nhash = "{hash_of(key)}"\ntenant = "TENANT"\nrights = ["read", "write"]')
    return 0


AGAIN_SECONDS = 1.0


@asynccontextmanager
async def reaching(urls: Iterable[str]) -> AsyncGenerator[None]:
    """Try each Redis until it answers once, while the context is open. Raises ``StoreUnsupported`` if one refuses."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_reach(url)) for url in urls]
            yield
            for task in tasks:
                task.cancel()
    except* StoreUnsupported as refused:
        raise refused.exceptions[0] from None


async def _reach(url: str) -> None:
    began = time.monotonic()
    async with open_redis(url, retries=0) as redis:
        failure = await _failure(redis)
        if failure is None:
            return
        log.warning(
            "%s: %s Requests fail until it answers; trying again.", redact(url), failure,
            extra={"action": "outage_began"},
        )  # fmt: skip
        while await _failure(redis) is not None:  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(AGAIN_SECONDS)
        log.info(
            "%s: Redis answers after %.1f s", redact(url), time.monotonic() - began,
            extra={"action": "outage_ended"},
        )  # fmt: skip


async def _failure(redis: Any) -> StoreError | None:
    """Return why this Redis does not answer, or None if it does. Raises ``StoreUnsupported``."""
    try:
        await asked(redis.ping())
    except StoreUnsupported:
        raise
    except StoreError as exc:
        return exc
    return None
