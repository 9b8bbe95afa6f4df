"""The command ``antiphon demo``."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import io
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO, cast

from antiphon.cli.arguments import Parser, add_json, command_parser, print_json
from antiphon.cli.terminal import counted
from antiphon.errors import AgentError, MissingPackage, UsageError
from antiphon_demo.conversations import read_conversations
from antiphon_demo.modelserver import reply_to
from antiphon_demo.play import Performance, perform
from antiphon_demo.process_guard import Guard
from antiphon_demo.record import SessionRecord
from antiphon_demo.screen import Screen, print_wrapped, screen_for
from antiphon_demo.service import PROVIDERS, choose_service
from antiphon_demo.stage import ANSWER_LENGTH, Stage
from antiphon_demo.verdict import judge

OWN_SESSIONS = 8
PACE = 25.0
TERMINATED = 143


def demo(argv: list[str]) -> int:
    """Play conversations, kill a worker in the middle of an answer, and check every guarantee

    Everything runs on this machine: an embedded Valkey, worker processes, a gateway with the operator dashboard, and a
    model server that speaks the wire formats of OpenAI and Anthropic. If OPENAI_API_KEY or ANTHROPIC_API_KEY is set,
    the real service answers instead. The exit code is 1 if a promise does not hold.
    """
    options = _parser().parse_args(argv)
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        lines, holds = _play(options)
    if options.json and holds is not None:
        print_json([{"holds": holds, "report": lines}])
    return TERMINATED if holds is None else 0 if holds else 1


def _play(options: argparse.Namespace) -> tuple[list[str], bool | None]:
    """Run the demo, and return its report and whether all promises hold; None if it was stopped."""
    most = options.sessions if options.sessions or options.input else OWN_SESSIONS
    conversations = read_conversations(options.input, most)
    service = choose_service(options.provider, options.model)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    places = counted(options.processes, "worker process", "worker processes")
    print_wrapped(f"{counted(len(conversations), 'session')} on {places}, answered by {service}.")
    screen = screen_for(cast("TextIO", sys.stdout), options.plain)
    records = [SessionRecord(one, service.agent(n), screen.see) for n, one in enumerate(conversations)]
    with Guard() as guard:
        stage = Stage(
            guard, processes=options.processes, pace=options.pace, service=service,
            serves=_can_serve(options.serve),
        )  # fmt: skip
        try:
            performance = asyncio.run(_run(records, stage, screen, kill=options.kill))
            lines, holds = judge(performance, expected=_expected if service.own else None, kill=options.kill)
            print_wrapped(*lines)
            if options.serve:
                _keep(stage)
        except asyncio.CancelledError:
            guard.kill()
            return [], None
        except BaseException:
            guard.kill()
            raise
    return lines, holds


def _can_serve(asked: bool) -> bool:
    """Return whether the gateway's packages are installed. Raises ``MissingPackage`` if not, but ``asked`` for."""
    found = all(map(importlib.util.find_spec, ("uvicorn", "starlette")))
    if asked and not found:
        raise MissingPackage(
            "The operator dashboard needs the gateway's packages: pip install 'antiphon[gateway]'."
        )
    return found


def _keep(stage: Stage) -> None:
    """Keep everything running until it is stopped."""
    print_wrapped(f"The page stays at {stage.page}. Ctrl-C ends it.")
    with suppress(KeyboardInterrupt):
        asyncio.run(_watch(stage))


async def _watch(stage: Stage) -> None:
    _let_sigterm_cancel()
    await stage.watch()


async def _run(records: Sequence[SessionRecord], stage: Stage, screen: Screen, *, kill: bool) -> Performance:
    _let_sigterm_cancel()
    try:
        print_wrapped("Starting Valkey, the workers and the model server …")
        await stage.set_up()
        if stage.page:
            print_wrapped(f"The operator dashboard shows them: {stage.page}")
        return await perform(records, stage, screen, kill=kill)
    except UsageError:
        raise
    except AgentError as exc:
        raise AgentError(f"{exc.message} The end of the workers' log:\n{stage.last_words()}") from exc
    finally:
        await stage.aclose()


def _let_sigterm_cancel() -> None:
    """Let SIGTERM cancel the current task."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _expected(said: Sequence[tuple[str, str]]) -> str:
    return reply_to(said, length=ANSWER_LENGTH)


def _parser() -> Parser:
    parser = command_parser(demo)
    parser.usage = "antiphon demo [OPTIONS]"
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help='play these conversations: lines of JSON such as {"turns": ["…", "…"]}',
    )
    parser.add_argument(
        "--sessions",
        type=_count,
        metavar="N",
        help=f"sessions to play; default: {OWN_SESSIONS}, or all of the file",
    )
    parser.add_argument(
        "--processes", type=_count, default=2, metavar="N", help="worker processes; default: 2"
    )
    parser.add_argument("--provider", choices=PROVIDERS, help="use only this wire format")
    parser.add_argument("--model", help="model of the service")
    parser.add_argument(
        "--pace",
        type=_pace,
        default=PACE,
        metavar="N",
        help=f"words per second of the built-in model server; default: {PACE:g}",
    )
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="do not kill a worker")
    parser.add_argument(
        "--serve", action="store_true", help="keep everything running afterwards, with the operator dashboard"
    )
    add_json(parser, "print at the end which promises hold as a line of JSON, and all else to standard error")
    parser.add_argument("--plain", action="store_true", help="print lines instead of a live view")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 10000")
    return int(text)


def _pace(text: str) -> float:
    try:
        pace = float(text)
    except ValueError:
        pace = 0.0
    if not 0 < pace <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of words per second")
    return pace
