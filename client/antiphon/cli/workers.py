"""``antiphon workers`` and ``antiphon queues``: what runs the turns of a deployment."""

from __future__ import annotations

import argparse
import sys

from antiphon.cli.arguments import add_json, add_redis, command_parser, print_found, read_client
from antiphon.cli.terminal import ago, printable
from antiphon.redis.deployment import list_queues, list_workers


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


def _parsed(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    add_json(parser)
    add_redis(parser)
    return parser.parse_args(argv)
