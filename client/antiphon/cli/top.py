"""``antiphon top``: a live view of the deployment."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
from typing import Any

from antiphon.cli.arguments import add_json, add_redis, command_parser, open_client, positive, print_json
from antiphon.cli.view import SORTS, Rates, View, rates_between
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, MissingPackage
from antiphon.redis.deployment import Overview, overview

HELP = "q quit  s sort  r reverse  / filter  p pause"


def top(argv: list[str]) -> int:
    """Watch queues, workers and running turns

    Keys: q quits, s sorts by the next column, r reverses, / filters (Enter ends, Escape clears), p pauses.
    Without a terminal, with --once, or without Rich (pip install 'antiphon[cli]'), it prints the state once.
    """
    parser = command_parser(top)
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help="seconds between readings; default: 2",
    )
    parser.add_argument("--once", action="store_true", help="print the state once, as text")
    add_json(parser, "print a JSON object at each interval")
    parser.add_argument("--svg", metavar="FILE", help="write the state once as a picture; needs Rich")
    parser.add_argument("--sort", choices=SORTS, default="age", help="order of the turns; default: age")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only lines that contain this text")
    parser.add_argument(
        "--limit",
        type=positive,
        default=200,
        metavar="N",
        help="most turns to read from each Redis; default: 200",
    )
    add_redis(parser)
    options = parser.parse_args(argv)
    asyncio.run(_top(options))
    return 0


async def _top(options: argparse.Namespace) -> None:
    has_rich = importlib.util.find_spec("rich") is not None
    if options.svg and not has_rich:
        raise MissingPackage("A picture needs Rich: pip install 'antiphon[cli]'.")
    async with open_client(options) as client:
        if options.json:
            await _print_json(client, options)
        elif options.once or options.svg or not has_rich or not (sys.stdin.isatty() and sys.stdout.isatty()):
            await _print_once(client, options)
        else:
            await _Screen(client, options).run()


async def _print_json(client: AsyncClient, options: argparse.Namespace) -> None:
    before = None
    while True:
        now = await overview(client.connections, options.limit)
        print_json([{"overview": now, "rates": rates_between(before, now)}])
        sys.stdout.flush()
        if options.once:
            return
        before = now
        await asyncio.sleep(options.interval)


async def _print_once(client: AsyncClient, options: argparse.Namespace) -> None:
    """Print the state, with rates measured over at most a second."""
    before = await overview(client.connections, options.limit)
    await asyncio.sleep(min(options.interval, 1.0))
    now = await overview(client.connections, options.limit)
    view = View(now, rates_between(before, now), options.sort, filter=options.filter)
    if options.svg:
        from antiphon.cli.screen import save_svg

        save_svg(view, options.svg)
    else:
        print("\n".join(view.plain()))


class _Screen:
    """The live screen: it reads the deployment at each interval, and responds to keys immediately."""

    def __init__(self, client: AsyncClient, options: argparse.Namespace) -> None:
        self._client = client
        self._interval: float = options.interval
        self._limit: int = options.limit
        self._view = View(Overview(0, [], [], []), Rates(), options.sort, filter=options.filter)
        self._typing = False
        self._paused = False
        self._trouble = ""

    async def run(self) -> None:
        from rich.live import Live

        from antiphon.cli.terminal import keys_of

        with keys_of(sys.stdin.fileno()) as pressed, Live(screen=True, auto_refresh=False) as live:
            reading = asyncio.create_task(self._read(live))
            obeying = asyncio.create_task(self._obey(pressed, live))
            done, _ = await asyncio.wait([reading, obeying], return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            obeying.cancel()
            await asyncio.gather(reading, obeying, return_exceptions=True)
        for task in done:
            task.result()

    async def _read(self, live: Any) -> None:
        before: Overview | None = None
        while True:
            if not self._paused:
                try:
                    now = await overview(self._client.connections, self._limit)
                except AgentError as exc:  # it continues when Redis is back
                    self._trouble = exc.message
                else:
                    self._view.overview, self._view.rates = now, rates_between(before, now)
                    before, self._trouble = now, ""
                self._draw(live)
            await asyncio.sleep(self._interval)

    async def _obey(self, pressed: asyncio.Queue[str], live: Any) -> None:
        """Handle keys until one ends the program."""
        while (key := await pressed.get()) != "q" or self._typing:
            self._press(key)
            self._draw(live)

    def _press(self, key: str) -> None:
        view = self._view
        if self._typing:
            self._type(key)
        elif key == "s":
            view.sort = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
        elif key == "r":
            view.reverse = not view.reverse
        elif key == "p":
            self._paused = not self._paused
        elif key == "/":
            self._typing = True
        elif key == "\x1b":
            view.filter = ""

    def _type(self, key: str) -> None:
        """Change the filter."""
        view = self._view
        if key in ("\r", "\n"):
            self._typing = False
        elif key == "\x1b":
            self._typing, view.filter = False, ""
        elif key in ("\x7f", "\b"):
            view.filter = view.filter[:-1]
        elif key.isprintable():
            view.filter += key

    def _draw(self, live: Any) -> None:
        from antiphon.cli.screen import drawn

        status = self._trouble or HELP
        if self._typing or self._view.filter:
            status += f"   filter: {self._view.filter}{'_' if self._typing else ''}"
        if self._paused:
            status += "   paused"
        live.update(drawn(self._view, status, live.console.width, live.console.height), refresh=True)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.1 <= found <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return found
