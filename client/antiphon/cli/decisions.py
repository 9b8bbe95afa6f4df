"""The commands for turns that wait for people or for the caller."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from antiphon.cli.arguments import Parser, add_json, add_redis, command_parser
from antiphon.cli.lists import first, list_parser, open_client, print_json, print_table
from antiphon.cli.terminal import clock_time
from antiphon.client import SuspendedTurn
from antiphon.errors import UsageError
from antiphon.redis.turn import AsyncTurn

__all__ = ["approve", "reject", "tool_result", "waiting"]


def waiting(argv: list[str]) -> int:
    """List the turns that wait for decisions, the one that waits longest first"""
    parser = list_parser(waiting, "turns")
    parser.add_argument("--tenant", metavar="NAME", help="show only turns of this tenant")
    options = parser.parse_args(argv)
    turns = asyncio.run(_waiting(options))
    if options.json:
        print_json(turns)
        return 0
    rows = [
        [
            one.turn_id, one.session_id, clock_time(one.suspended), call.call_id, call.kind,
            clock_time(call.until or 0), f"{call.name} {call.arguments}",
        ]
        for one in turns
        for call in one.calls
    ]  # fmt: skip
    print_table(["turn", "session", "since", "call", "waits for", "until", "what"], rows, "No turn waits.")
    return 0


async def _waiting(options: argparse.Namespace) -> list[SuspendedTurn]:
    async with open_client(options) as client:
        return await first(options.limit, client.waiting(tenant=options.tenant))


def approve(argv: list[str]) -> int:
    """Approve a tool call that a turn waits for

    Without the id of a call, the turn must wait for one call only.
    """
    parser = _parser(approve)
    parser.add_argument("--arguments", metavar="JSON", help="an object that replaces the model's arguments")
    options = parser.parse_args(argv)
    arguments = None if options.arguments is None else _object(options.arguments)
    return _decide(options, lambda turn, call: turn.approve(call, by=options.by, arguments=arguments))


def reject(argv: list[str]) -> int:
    """Reject a tool call that a turn waits for

    Without the id of a call, the turn must wait for one call only.
    """
    parser = _parser(reject)
    parser.add_argument("--reason", metavar="TEXT", help="why; the model is told")
    options = parser.parse_args(argv)
    return _decide(options, lambda turn, call: turn.reject(call, by=options.by, reason=options.reason))


def tool_result(argv: list[str]) -> int:
    """Give the result of a tool call that a turn's caller has to run

    Without the id of a call, the turn must wait for one call only.
    """
    parser = _parser(tool_result, "tool-result")
    parser.add_argument(
        "--result", metavar="TEXT", required=True, help="what the model is told; '-' reads standard input"
    )
    parser.add_argument("--error", action="store_true", help="the tool has failed: the result says why")
    options = parser.parse_args(argv)
    text = sys.stdin.read() if options.result == "-" else options.result
    return _decide(
        options, lambda turn, call: turn.tool_result(call, text, by=options.by, is_error=options.error)
    )


def _parser(command: Callable[..., object], name: str | None = None) -> Parser:
    parser = command_parser(command, name)
    parser.add_argument("turn", help="the turn's id")
    parser.add_argument("call", nargs="?", help="the call's id, as `antiphon waiting` shows it")
    parser.add_argument(
        "--by", metavar="NAME", default="the command line", help="who decides; it stays in the history"
    )
    parser.add_argument("--tenant", metavar="NAME", help="refuse if the turn is not one of this tenant")
    add_json(parser, "print the decision as a line of JSON")
    add_redis(parser)
    return parser


def _decide(options: argparse.Namespace, decide: Callable[[AsyncTurn, str], Awaitable[None]]) -> int:
    async def run() -> int:
        async with open_client(options) as client:
            turn = await client.turn(options.turn, tenant=options.tenant)
            call = options.call or await _only_call(turn)
            await decide(turn, call)
            info = await turn.info()
            made = [one for one in info.decisions if one.call_id == call]
            if options.json:
                print_json(made)
            elif info.calls:
                print(f"decided; the turn waits for {len(info.calls)} more")
            else:
                print("decided; the turn goes on")
        return 0

    return asyncio.run(run())


async def _only_call(turn: AsyncTurn) -> str:
    info = await turn.info()
    if len(info.calls) == 1:
        return info.calls[0].call_id
    if not info.calls:
        raise UsageError(f"Turn {turn.id} is {info.status}: it does not wait for a decision.")
    ids = ", ".join(call.call_id for call in info.calls)
    raise UsageError(f"Turn {turn.id} waits for several calls: name one of {ids}.")


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        raise UsageError(f"--arguments must be a JSON object: {exc}.") from exc
