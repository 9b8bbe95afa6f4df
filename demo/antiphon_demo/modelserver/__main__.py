"""``python -m antiphon_demo.modelserver``: a model server in a process of its own.

It prints one line of JSON with its URLs when it is ready. It ends at SIGTERM, SIGINT or, with ``--with-parent``, when
its parent closes the pipe to its standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from typing import Any

from antiphon_demo.modelserver.directives import Behaviour, read_fault
from antiphon_demo.modelserver.server import ModelServer


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    behaviour = Behaviour(
        pace=options.pace,
        first_piece_seconds=options.first,
        length=options.length,
        stamp=options.stamp,
        fault_rate=options.fault_rate,
        faults=tuple(options.faults.split(",")),
        seed=options.seed,
        limit=options.limit,
        limit_seconds=options.limit_seconds,
        limit_told=not options.limit_untold,
    )
    _raise_open_files()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(behaviour, options))
    except OSError as exc:
        print(f"The model server cannot listen on {options.host}:{options.port}: {exc}.", file=sys.stderr)
        return 1
    return 0


async def _serve(behaviour: Behaviour, options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if options.with_parent:
        loop.add_reader(
            sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 4096) else _leave(stopped)
        )
    async with ModelServer(behaviour, host=options.host, port=options.port) as server:
        urls = {"base_url": server.base_url, "openai_url": server.openai_url, "pid": os.getpid()}
        print(json.dumps(urls), flush=True)
        await stopped.wait()


def _leave(stopped: asyncio.Event) -> None:
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    stopped.set()


def _parser() -> argparse.ArgumentParser:
    default = Behaviour()
    parser = argparse.ArgumentParser(prog="python -m antiphon_demo.modelserver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument(
        "--pace",
        type=float,
        default=default.pace,
        help="pieces per second in each stream; 0 sends all at once",
    )
    parser.add_argument(
        "--first", type=float, default=default.first_piece_seconds, help="seconds to the first piece"
    )
    parser.add_argument("--length", type=int, default=default.length, help="pieces of an answer")
    parser.add_argument("--stamp", action="store_true", help="put the sending time into each piece")
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of the requests that fail")
    parser.add_argument(
        "--faults",
        type=_faults,
        default=",".join(default.faults),
        help="how they fail, for example 429,500,cut=3",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--limit", type=int, default=0, help="requests that are answered in --limit-seconds")
    parser.add_argument("--limit-seconds", type=float, default=default.limit_seconds)
    parser.add_argument("--limit-untold", action="store_true", help="omit the headers that report the limit")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input is closed")
    return parser


def _faults(text: str) -> str:
    for fault in text.split(","):
        if read_fault(fault) is None:
            raise argparse.ArgumentTypeError(
                f"{fault!r} is not a fault: use 429, 500, 529, drop, cut=5, hang, error=5 or failed=5"
            )
    return text


def _loop_factory() -> Any:
    """Return uvloop's loop if it is installed."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def _raise_open_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
