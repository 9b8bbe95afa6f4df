"""The command that runs an ended turn again with another model or prompt, and compares."""

from __future__ import annotations

import asyncio
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from antiphon.agent import Agent
from antiphon.cli.arguments import add_json, add_redis, command_parser, open_client, positive, print_json
from antiphon.cli.terminal import one_line, printable, table
from antiphon.errors import MissingPackage, UsageError
from antiphon.model import Message
from antiphon.model.recording import Recording
from antiphon.replaying import read_recording

_AGENT = re.compile(r"([\w.]+):(\w+)")
WIDTH = 100


def replay(argv: list[str]) -> int:
    """Run an ended turn again with another model or system prompt, and compare the answers

    The turn runs in this process, with the model service of the agent. Earlier model calls than --step have the
    recorded answers. Tools do not run: a call like a recorded one returns what that one returned. Nothing is written to
    Redis.
    """
    parser = command_parser(replay)
    parser.add_argument("turn", help="id of the turn, or a file of `antiphon record`")
    parser.add_argument(
        "--agent", metavar="MODULE:NAME", required=True, action="append",
        help="where the agent is found; again for each agent that its hand-offs only name",
    )  # fmt: skip
    parser.add_argument("--model", help="another model; default: that of the agent")
    parser.add_argument("--system", metavar="TEXT", help="another system prompt; default: that of the agent")
    parser.add_argument(
        "--step", metavar="N", type=positive, default=1, help="first model call to make again; default: 1"
    )
    parser.add_argument(
        "-n", metavar="N", type=positive, default=1, dest="runs", help="number of runs; default: 1"
    )
    add_json(parser, "print each run as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    agents = [_agent(one) for one in options.agent]
    known = read_recording(options.turn) if Path(options.turn).is_file() else None
    recording, runs = asyncio.run(_run(options, agents, known))
    if options.json:
        print_json(runs)
        return 0
    shown = [
        ("recorded", recording.messages, None),
        *((f"run {n}", one.messages, one) for n, one in enumerate(runs, 1)),
    ]
    print("\n".join(table(["run", "model", "calls", "tokens", "cost", "seconds", "differs", "error"], [
        _row(name, messages, run, recording) for name, messages, run in shown
    ])))  # fmt: skip
    for name, messages, _ in shown:
        print(printable("\n".join(["", name, *(f"  {line}" for line in steps_of(messages))])))
    return 0


async def _run(options: Any, agents: list[Agent], recording: Recording | None) -> tuple[Recording, list[Any]]:
    try:
        run_variant = import_module("antiphon_worker.variants").run_variant
    except ModuleNotFoundError as exc:
        raise MissingPackage(
            "antiphon replay needs the worker's packages: pip install 'antiphon[worker]'."
        ) from exc
    if recording is None:
        async with open_client(options) as client:
            recording = await (await client.turn(options.turn)).recording()
    changed = {"step": options.step, "model": options.model, "system": options.system}
    return recording, list(
        await asyncio.gather(*(run_variant(recording, *agents, **changed) for _ in range(options.runs)))
    )


def steps_of(messages: list[Message]) -> list[str]:
    """Return a line for each answer of the model: its tool calls and its text."""
    found: list[str] = []
    for message in messages:
        if message.role == "assistant":
            calls = [
                f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
                for call in message.tool_calls
            ]
            found.append(one_line(" ".join([*filter(None, [message.text]), *calls]), WIDTH))
    return found


def _row(name: str, messages: list[Message], run: Any, recording: Recording) -> list[object]:
    mine, theirs = steps_of(messages), steps_of(recording.messages)
    if run is None:
        return [name, "-", len(mine), "-", "-", "-", "-", recording.code or "-"]
    pairs = enumerate(zip([*mine, ""], [*theirs, ""], strict=False), 1)
    first = next((place for place, (one, other) in pairs if one != other), None)
    cost = "-" if run.usage.cost is None else f"${run.usage.cost:.4g}"
    differs = "no" if first is None else f"in call {first}"
    return [
        name,
        run.model,
        len(mine),
        run.usage.tokens,
        cost,
        f"{run.seconds:.2f}",
        differs,
        run.error or "-",
    ]


def _agent(place: str) -> Agent:
    """Import an agent. Raises ``UsageError``."""
    found = _AGENT.fullmatch(place)
    if found is None:
        raise UsageError(f"--agent must name an agent as module:name, not {place!r}.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        agent = getattr(import_module(found[1]), found[2])
    except (ImportError, AttributeError) as exc:
        raise UsageError(f"--agent {place} cannot be imported: {exc}.") from exc
    if not isinstance(agent, Agent):
        raise UsageError(f"--agent {place} must be an Agent, not {type(agent).__name__}.")
    return agent
