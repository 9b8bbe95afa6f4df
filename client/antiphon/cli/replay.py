"""The commands that record ended turns, and run them again with another agent, model or prompt."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from antiphon.agent import Agent
from antiphon.cli.arguments import (
    add_json,
    add_redis,
    command_parser,
    open_client,
    positive,
    print_json,
    read_client,
    seconds,
)
from antiphon.cli.terminal import one_line, printable, table
from antiphon.client import AsyncClient
from antiphon.errors import MissingPackage, ResultTimeout, UsageError
from antiphon.model import Message
from antiphon.model.recording import Recording, SessionRecording, Variant, VariantRun
from antiphon.replaying import encoded, read_recordings
from antiphon.text import text_of

BEGINNING = '"""Replays recorded turns without a network.'
"""The beginning of every test that this command writes; it overwrites only such files."""

TEST = '''{beginning}

Written by: {command}
"""

from pathlib import Path

{imports}

from antiphon.testing import replay


def test_{name}():
    replay(Path(__file__).with_suffix(".json")).check({names})
'''
_AGENT = re.compile(r"([\w.]+):(\w+)")
_REVISION = re.compile(r"[^:]+@[^:]+")
WIDTH = 100
LOOK_SECONDS = 0.5
LOST = "lost: its worker has stopped"
Runs: TypeAlias = list[tuple[str, Variant]]
"""The outcomes of a turn's runs, each with its name in the table."""


def record(argv: list[str]) -> int:
    """Print an ended turn, or those of a session, as a recording, or write a test that replays it

    The recording has the input, the history before it, the answers of the model, the results of tools and the decisions
    about calls, but no keys. With encryption keys, it is encrypted. With --test, it is written next to a pytest file,
    which replays it with the agent, without a network.
    """
    parser = command_parser(record)
    parser.add_argument("turn", nargs="?", help="id of the turn")
    parser.add_argument("--session", metavar="ID", help="record all ended turns of this session instead")
    parser.add_argument("--test", metavar="FILE", help="write this pytest file, and the recording next to it")
    parser.add_argument(
        "--agent", metavar="MODULE:NAME", action="append",
        help="where the test finds the agent; again for each agent that its hand-offs only name",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the recording as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    if (options.test is None) != (options.agent is None):
        parser.error("--test and --agent need each other")
    if (options.turn is None) == (options.session is None):
        parser.error("name a turn or a --session")

    async def read(client: AsyncClient) -> Recording | SessionRecording:
        if options.session is not None:
            return await client.session(options.session).recording()
        return await (await client.turn(options.turn)).recording()

    recording = read_client(options, read)
    if options.test is None:
        data = encoded(recording)
        sys.stdout.write(text_of(data.replace(b"\n", b"") if options.json else data) + "\n")
        return 0
    _write_test(recording, Path(options.test), options.agent)
    return 0


def _write_test(recording: Recording | SessionRecording, file: Path, agents: list[str]) -> None:
    """Write the test and its recording. Raises ``UsageError``."""
    found = [match for one in agents if (match := _AGENT.fullmatch(one))]
    if len(found) < len(agents) or file.suffix != ".py":
        raise UsageError("--test must name a .py file, and --agent an agent as module:name.")
    if isinstance(recording, Recording):
        what, name = shlex.quote(recording.turn_id), "turn_" + re.sub(r"\W", "_", recording.turn_id[:8])
    else:
        what, name = f"--session {shlex.quote(recording.session_id)}", "session"
    named = " ".join(f"--agent {one}" for one in agents)
    text = TEST.format(
        beginning=BEGINNING,
        command=_in_docstring(f"antiphon record {what} --test {shlex.quote(file.name)} {named}"),
        name=name,
        imports="\n".join(f"from {one[1]} import {one[2]}" for one in found),
        names=", ".join(one[2] for one in found),
    )
    data = file.with_suffix(".json")
    try:
        known = file.exists() and file.read_text(errors="replace").startswith(BEGINNING)
        for one in (file, data):
            if one.exists() and not known:
                raise UsageError(
                    f"{one} exists, and is not of `antiphon record`: name another file after --test."
                )
        data.write_bytes(encoded(recording) + b"\n")
        file.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"{file} cannot be written: {exc.strerror}.") from exc
    print(file)


def _in_docstring(text: str) -> str:
    """Escape a text for a docstring, so that a session id that a user has chosen cannot end the docstring."""
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def replay(argv: list[str]) -> int:
    """Run ended turns again with another agent, model or system prompt, and compare the answers

    With --agent MODULE:NAME, the turn runs in this process, with the model service of the agent, and nothing is written
    to Redis. With --agent NAME@REVISION, it runs on a worker that has this revision, and the runs are kept for 7 days.
    Without --agent, the runs that are kept are compared again. Model calls before --step have the recorded answers.
    Tools do not run: a call like a recorded one returns what that one returned.
    """
    parser = command_parser(replay)
    parser.add_argument("turn", nargs="?", help="id of the turn, or a file of `antiphon record`")
    parser.add_argument("--session", metavar="ID", help="run all ended turns of this session instead")
    parser.add_argument(
        "--agent", metavar="MODULE:NAME|NAME@REVISION", default=[], action="append",
        help="where the agent is found, again for each agent that its hand-offs only name; or a revision that a worker "
        "has, or its label",
    )  # fmt: skip
    parser.add_argument("--key", help="with NAME@REVISION: the same key starts no further runs of a turn")
    parser.add_argument("--model", help="another model; default: that of the agent")
    parser.add_argument("--system", metavar="TEXT", help="another system prompt; default: that of the agent")
    parser.add_argument(
        "--step", metavar="N", type=positive, default=1, help="first model call to make again; default: 1"
    )
    parser.add_argument(
        "-n", metavar="N", type=positive, default=1, dest="runs", help="number of runs; default: 1"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=600.0, metavar="SECONDS",
        help="how long to wait for workers; default: 600",
    )  # fmt: skip
    add_json(parser, "print each run as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    if (options.turn is None) == (options.session is None):
        parser.error("name a turn or a --session")
    here = bool(options.agent) and _REVISION.fullmatch(options.agent[0]) is None
    if not here and len(options.agent) > 1:
        parser.error("--agent NAME@REVISION can be given once")
    if options.key is not None and (here or not options.agent):
        parser.error("--key needs --agent NAME@REVISION")
    agents = [_agent(one) for one in options.agent] if here else []
    file = Path(options.turn or "")
    if file.is_file() and not here:
        parser.error("a file needs --agent MODULE:NAME: workers run turns that Redis has")
    known = read_recordings(file) if file.is_file() else None
    asyncio.run(_replay(options, agents, known))
    return 0


async def _replay(options: Any, agents: list[Agent], recordings: list[Recording] | None) -> None:
    """Run each recorded turn and print the outcome. Raises ``UsageError``, ``ResultTimeout``."""
    if recordings is not None:
        for one in recordings:
            _print(options, one, await _here(options, agents, one), heading=len(recordings) > 1)
        return
    async with open_client(options) as client:
        if options.session is not None:
            recordings = (await client.session(options.session).recording()).recordings()
        else:
            recordings = [await (await client.turn(options.turn)).recording()]
        for one in recordings:
            runs = await (_here(options, agents, one) if agents else _on_workers(options, client, one))
            _print(options, one, runs, heading=len(recordings) > 1)


def _print(options: Any, recording: Recording, runs: Runs, *, heading: bool) -> None:
    if options.json:
        return print_json([run for _, run in runs])
    shown = [("recorded", recording.messages, None), *((name, run.messages, run) for name, run in runs)]
    if heading:
        print(printable(f"\nturn {recording.turn_id}"))
    print("\n".join(table(["run", "model", "calls", "tokens", "cost", "seconds", "differs", "error"], [
        _row(name, messages, run, recording) for name, messages, run in shown
    ])))  # fmt: skip
    for name, messages, _ in shown:
        print(printable("\n".join(["", name, *(f"  {line}" for line in steps_of(messages))])))
    return None


async def _on_workers(options: Any, client: AsyncClient, recording: Recording) -> Runs:
    """Let workers run a turn, or find its kept runs, and return these runs when all have ended.

    Raises ``UsageError``, ``ResultTimeout``.
    """
    turn = await client.turn(recording.turn_id)
    started = await (turn.replay(
        options.agent[0], runs=options.runs, step=options.step, model=options.model, system=options.system,
        key=options.key,
    ) if options.agent else turn.variants())  # fmt: skip
    wanted = {run.id for run in started}
    try:
        async with asyncio.timeout(options.timeout):
            while True:
                runs = [run for run in await turn.variants() if run.id in wanted]
                if all(run.status != "running" for run in runs):
                    return [_run_of_worker(n, run) for n, run in enumerate(runs, 1)]
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise ResultTimeout(f"The runs did not end within {options.timeout:g} s.") from None


async def _here(options: Any, agents: list[Agent], recording: Recording) -> Runs:
    """Run the turn in this process. Raises ``UsageError``."""
    try:
        run_variant = import_module("antiphon_worker.loop.variants").run_variant
    except ModuleNotFoundError as exc:
        raise MissingPackage(
            "antiphon replay needs the worker's packages: pip install 'antiphon[worker]'."
        ) from exc
    changed = {"step": options.step, "model": options.model, "system": options.system}
    runs = await asyncio.gather(*(run_variant(recording, *agents, **changed) for _ in range(options.runs)))
    return [(f"run {n}", run) for n, run in enumerate(runs, 1)]


def _run_of_worker(number: int, run: VariantRun) -> tuple[str, Variant]:
    name = f"run {number} of {run.agent}@{run.revision}"
    return name, run.variant or Variant(run.model or "-", error=LOST)


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
        raise UsageError(f"--agent must name an agent as module:name or name@revision, not {place!r}.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        agent = getattr(import_module(found[1]), found[2])
    except (ImportError, AttributeError) as exc:
        raise UsageError(f"--agent {place} cannot be imported: {exc}.") from exc
    if not isinstance(agent, Agent):
        raise UsageError(f"--agent {place} must be an Agent, not {type(agent).__name__}.")
    return agent
