"""One worker process. The supervisor starts it; its settings come as ``ANTIPHON_*`` variables."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from antiphon.errors import AgentError
from antiphon_worker.app import App, load_app
from antiphon_worker.settings import Settings
from antiphon_worker.worker import Worker

LOG_FORMAT = "%(asctime)s %(levelname)-7s [%(action)s] %(message)s"


def main() -> int:
    """Run until drained. 0 when all was finished or given back, 2 where the settings are wrong."""
    try:
        settings = Settings.load()
        set_up_logging(settings.log_level)
        app = load_app(settings.app)
        app.archive(settings.archive)
    except AgentError as exc:
        sys.stderr.write(f"antiphon worker: {exc}\n")
        return 2
    run = _runner()
    run(_work(settings, app))
    return 0


def set_up_logging(level: str) -> None:
    """Log to standard error, each line with its ``action`` (``-`` where nothing has changed its state)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT, defaults={"action": "-"}))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("httpx2", "httpcore2", "openai", "anthropic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


async def _work(settings: Settings, app: App) -> None:
    worker = Worker(
        settings, app, url=os.environ.get("ANTIPHON_CELL_URL"), name=os.environ.get("ANTIPHON_WORKER_NAME")
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.drain)
    if os.environ.get("ANTIPHON_SUPERVISED"):
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches the whole group: the supervisor passes it on
        _drain_when_orphaned(loop, worker)
    else:
        loop.add_signal_handler(signal.SIGINT, worker.drain)
    try:
        await app.preload()  # before the first turn is taken: other workers are quicker until then
        await worker.run()
    finally:
        await app.aclose()


def _drain_when_orphaned(loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    """The supervisor holds the other end of our standard input; its end is the supervisor's."""
    source = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(source, 1024):
            loop.remove_reader(source)
            worker.drain()

    loop.add_reader(source, readable)


def _runner():
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


if __name__ == "__main__":
    sys.exit(main())
