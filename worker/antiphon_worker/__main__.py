"""One worker process. The supervisor starts it and passes the settings as ``ANTIPHON_*`` variables."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable

from antiphon.errors import AgentError
from antiphon.redis.cells import open_cells
from antiphon.telemetry import set_up_logging
from antiphon.wire.connection.open import cell_urls
from antiphon_worker.app import App, load_app
from antiphon_worker.process.isolated_turn import run_isolated_turns
from antiphon_worker.process.room import Shared
from antiphon_worker.process.worker import Worker
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.child import ALONE, WORK, Lifeline
from antiphon_worker.supervisor.event_loop import run_to_its_end
from antiphon_worker.supervisor.watchdog import Page, State, beating

log = logging.getLogger("antiphon.process")

FULL_COLLECTION_EVERY = 1000
"""How many smaller collections precede a full one, which takes a tenth of a second with hundreds of turns."""


def main() -> int:
    """Run until drained. Returns 0 if all turns were finished or requeued, 1 if not, 2 for invalid settings."""
    lifeline, page = None, _page()
    if os.environ.get("ANTIPHON_SUPERVISED"):
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches the whole group: the supervisor passes it on
        lifeline = Lifeline.of_standard_input()
    gc.disable()  # until everything is loaded: none of it is garbage
    try:
        settings = Settings.load()
        set_up_logging(settings.log_level, settings.log_format)
        app = load_app(settings.app)
        app.archive(settings.archive)
    except AgentError as exc:
        sys.stderr.write(f"antiphon worker: {exc}\n")
        return 2
    try:
        run_to_its_end(_serve(settings, app, lifeline, page), _loop_factory())
    except AgentError as exc:
        log.error("this process ends: %s", exc, extra={"action": "start_failed"})
        return 1
    return 0


def _page() -> Page | None:
    """Return the memory shared with the parent process for the watchdog, or None."""
    descriptor = os.environ.pop("ANTIPHON_PULSE", "")
    if not descriptor:
        return None
    page = Page(int(descriptor))
    os.close(int(descriptor))
    return page


async def _serve(settings: Settings, app: App, lifeline: Lifeline | None, page: Page | None) -> None:
    if page is not None:
        page.enter(State.SERVING)
        app.toolbox.calls.on_change(page.write_calls)
    try:
        await app.preload()  # before the first turn is taken: until then, other workers are faster
        _collect_seldom()
        purpose = await lifeline.purpose() if lifeline is not None else []
        async with beating(page, settings.stall_timeout):
            await _fulfil(purpose, settings, app, lifeline)
        if page is not None:
            page.enter(State.DONE)
    finally:
        await app.aclose()


async def _fulfil(purpose: list[str], settings: Settings, app: App, lifeline: Lifeline | None) -> None:
    if lifeline is None:
        await _work([Worker(settings, app)], None)
        return
    match purpose:
        case [what, name, url] if what == WORK:
            await _serve_cells(cell_urls(url), settings, app, name, lifeline)
        case [what, name, url] if what == ALONE:
            await run_isolated_turns(lifeline.socket, app, settings, name, url)
        case _:
            log.debug("this process was not needed")


async def _serve_cells(cells: list[str], settings: Settings, app: App, name: str, lifeline: Lifeline) -> None:
    """Run a worker for each of these cells, until all are drained."""
    if len(cells) == 1:
        await _work([Worker(settings, app, url=cells[0], name=name, spare=lifeline.spare)], lifeline)
        return
    shared = Shared(settings, open_cells(settings.cell_urls, prefix=settings.prefix), len(cells))
    upkeep = asyncio.create_task(shared.run())
    workers = [
        Worker(settings, app, url=cell, name=name, spare=lifeline.spare, shared=shared) for cell in cells
    ]
    try:
        await _work(workers, lifeline)
    finally:
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)


def _collect_seldom() -> None:
    """Make full collections rare: they block all streams, loaded objects stay, and turns leave no cycles."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_EVERY)
    gc.enable()


async def _work(workers: list[Worker], lifeline: Lifeline | None) -> None:
    """Run a worker for each cell of this process until all are drained. They end together: no cell stays unserved."""
    draining = False

    def drain() -> None:
        nonlocal draining
        draining = True
        for worker in workers:
            worker.drain()

    def follow(ended: asyncio.Task[None]) -> None:
        if not draining:  # the control channel of its cell has drained it
            drain()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, drain)
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    for task in tasks:
        task.add_done_callback(follow)
    running = asyncio.gather(*tasks)
    if lifeline is None:
        loop.add_signal_handler(signal.SIGINT, drain)
        await running
        return
    lifeline.watch(drain)
    try:
        await running
    finally:
        lifeline.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
