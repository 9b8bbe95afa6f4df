"""The commands for workers, queues and cells, and for failed turns."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from antiphon.cli.arguments import (
    add_json,
    add_redis,
    command_parser,
    first,
    form_of,
    list_parser,
    print_found,
    print_json,
    read_client,
    redis_urls,
    seconds,
    with_acts,
)
from antiphon.cli.terminal import ago, clock_time, printable
from antiphon.client import AsyncClient
from antiphon.errors import CODES, AgentError
from antiphon.input.ids import turn_id
from antiphon.redis.cells import prefix_of
from antiphon.redis.deployment import CellState, cell_states, list_queues, list_workers
from antiphon.redis.failed import FILTERS, FailedFilter
from antiphon.redis.moving import PAUSE_SECONDS, move_cells
from antiphon.wire.lists.inspection import not_turns

_AGO = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def failed(argv: list[str]) -> int:
    """List the failed turns, most recent first

    Without a filter, failed jobs of other functions and sessions that were set aside are listed as well. --json shows
    what was asked, and all runs with their errors.
    """
    parser = list_parser(failed, "turns")
    _add_filter(parser)
    options = parser.parse_args(argv)
    turns = read_client(options, lambda client: _failed(client, options.limit, _filter(options)))
    if not turns:
        _check_code(parser, options.code)
    rows = [
        [
            one.turn_id,
            one.session_id or "-",
            getattr(one, "run", 1),
            clock_time(one.ended or 0),
            one.code,
            one.error,
        ]
        for one in turns
    ]
    return print_found(options, turns, "turn, session, run, ended, code, error", rows, "No turn has failed.")


async def _failed(client: AsyncClient, limit: int, which: FailedFilter) -> list[Any]:
    found: list[Any] = await first(limit, client.failed(**which))
    if not which:
        for cell in client.connections.cells:
            found += await not_turns(cell, limit)
    return sorted(found, key=lambda one: -(one.ended or 0))[:limit]


def requeue(argv: list[str]) -> int:
    """Run failed turns again

    Each is added to the end of its session's inbox as a new run, with new counters. Name the turns, or select them with
    the filters of `antiphon failed`; --all selects all. Exit code 1 if one of them could not be requeued.
    """
    parser = command_parser(requeue)
    parser.add_argument("turn", nargs="*", help="the ids of failed turns")
    parser.add_argument("--all", action="store_true", help="all failed turns")
    add_json(parser, "print a line of JSON for each")
    parser.add_argument("--tenant", metavar="NAME", help="only turns of this tenant")
    _add_filter(parser)
    add_redis(parser)
    options = parser.parse_args(argv)
    which = _filter(options)
    if options.all:
        which["since"] = 0
    if bool(options.turn) == bool(which):
        parser.error("name the turns, or select them with a filter or --all")
    known = [turn_id(one) for one in options.turn]
    told = read_client(options, lambda client: client.requeue_many(known or None, **which))
    if not told:
        _check_code(parser, options.code)
    refused = [one for one in told if isinstance(one, AgentError)]
    for number, one in enumerate(told):
        name = known[number] if known else one.turn_id if isinstance(one, AgentError) else one.id
        error = one.message if isinstance(one, AgentError) else None
        if options.json:
            print_json([{"turn_id": name, "requeued": error is None, "error": error}])
        elif error is None:
            print(name, flush=True)
    if refused and not options.json:
        raise refused[0]
    return 1 if refused else 0


def _check_code(parser: argparse.ArgumentParser, code: str | None) -> None:
    """Refuse a code that no release writes and no turn has. Turns may have codes from an application's own errors."""
    if code is None or code in CODES:
        return
    near = get_close_matches(code, CODES, 1)
    advice = f"did you mean {near[0]!r}? The codes are" if near else "the codes are"
    parser.error(f"no turn has the code {code!r}: {advice} {', '.join(CODES)}")


def _add_filter(parser: argparse.ArgumentParser) -> None:
    for name, option in FILTERS.items():
        if name in ("since", "until"):
            parser.add_argument(
                f"--{name}",
                metavar="TIME",
                type=_time,
                help=f"{option.doc}: 30m, 2h or 7d ago, or an ISO time",
            )
        elif name != "tenant":
            parser.add_argument(f"--{name}", help=option.doc, **form_of(option.json))


def _filter(options: argparse.Namespace) -> FailedFilter:
    found: Any = {name: value for name in FILTERS if (value := getattr(options, name)) is not None}
    return found


def _time(text: str) -> datetime:
    ago = _AGO.fullmatch(text)
    if ago:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: use 30m, 2h, 7d or 2026-11-22T09:00"
        ) from None
    return found if found.tzinfo else found.astimezone()


def workers(argv: list[str]) -> int:
    """List the live worker processes and their turns

    A worker that was killed stays for up to a minute. Exit code 1 if there is none.
    """
    parser = command_parser(workers)
    parser.add_argument("--queue", metavar="NAME", help="show only workers of this queue")
    options = _parsed(parser, argv)
    found = read_client(options, lambda client: list_workers(client.connections))
    if options.queue is not None:
        found = [one for one in found if options.queue in one.queues]
    rows = [
        [
            one.name, ",".join(one.queues), one.state, one.running, one.finished, one.failed, one.tokens,
            f"{one.lag * 1000:.0f} ms", ago(one.since or 0), ago(one.heard or 0),
        ]
        for one in found
    ]  # fmt: skip
    head = "worker, queues, state, turns, finished, failed, tokens, lag, started, heard"
    print_found(options, found, head, rows, "There is no worker: start one with `antiphon worker`.")
    return 0 if found else 1


def queues(argv: list[str]) -> int:
    """List the queues with their turns and the age of the oldest one

    Exit code 1 if turns wait in a queue that no worker serves.
    """
    parser = command_parser(queues)
    options = _parsed(parser, argv)
    found = read_client(options, lambda client: list_queues(client.connections))
    rows = [
        [
            one.name, one.queued, one.running, one.waiting, one.delayed, one.failed, one.workers,
            "-" if one.oldest_seconds is None else f"{one.oldest_seconds:.0f} s",
        ]
        for one in found
    ]  # fmt: skip
    head = "queue, queued, running, waiting, delayed, failed, workers, oldest"
    print_found(options, found, head, rows, "There is no queue yet.")
    stranded = [one.name for one in found if one.queued and not one.workers]
    if stranded and not options.json:
        print(printable(f"No worker serves {', '.join(stranded)}."), file=sys.stderr)
    return 1 if stranded else 0


def _move(argv: list[str]) -> int:
    """Move all cells to another server or cluster while they are used

    Then start all clients and workers with the new URL: at the old one they are refused. If the command was
    interrupted, run it again.
    """
    parser = command_parser(_move, "cells move")
    parser.add_argument("target", metavar="URL", help="Redis URL of the new place, with as many cells")
    parser.add_argument(
        "--pause", metavar="SECONDS", type=seconds, default=PAUSE_SECONDS,
        help=f"how long the writes of a cell may be paused; default: {PAUSE_SECONDS:g}",
    )  # fmt: skip
    add_json(parser, "print a line of JSON for each cell")
    add_redis(parser)
    options = parser.parse_args(argv)
    moved = asyncio.run(move_cells(
        options.redis_url, options.target, prefix=prefix_of(options.prefix), pause=options.pause,
        say=lambda sentence: print(printable(sentence), file=sys.stderr, flush=True),
    ))  # fmt: skip
    rows = [[one.name, one.target, one.keys, one.passes, f"{one.paused_seconds:.2f} s"] for one in moved]
    return print_found(options, moved, "cell, moved to, keys, passes, paused", rows, "")


@with_acts({"move": _move})
def cells(argv: list[str]) -> int:
    """List the cells with their servers, sessions, load and lag

    On a Redis Cluster, a cell is listed with the node that has its slot now. Exit code 1 if a cell takes no turns.
    """
    parser = command_parser(cells)
    options = _parsed(parser, argv)
    found = asyncio.run(cell_states(redis_urls(options.redis_url), prefix_of(options.prefix)))
    head = "cell, node, state, sessions, running, queued, oldest, workers, lag, memory"
    print_found(options, found, head, [_cell_row(one) for one in found], "")
    return 0 if all(one.writable for one in found) else 1


def _cell_row(one: CellState) -> list[object]:
    oldest = max((queue.oldest_seconds or 0 for queue in one.queues), default=0)
    return [
        one.name, one.node or "-", "ready" if one.writable else "read-only" if one.up else "unreachable",
        "-" if one.sessions is None else one.sessions, sum(queue.running for queue in one.queues),
        sum(queue.queued for queue in one.queues), f"{oldest:.0f} s" if oldest else "-",
        "-" if one.workers is None else len(one.workers), "-" if one.lag is None else f"{one.lag * 1000:.0f} ms",
        "-" if one.memory is None else f"{one.memory[0] / 1e6:.0f} MB",
    ]  # fmt: skip


def _parsed(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    add_json(parser)
    add_redis(parser)
    return parser.parse_args(argv)
