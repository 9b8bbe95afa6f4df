"""The command that records an ended turn, and writes a test that replays it."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from antiphon.cli.arguments import add_redis, command_parser, read_client
from antiphon.client import AsyncClient
from antiphon.errors import UsageError
from antiphon.model.recording import Recording, SessionRecording
from antiphon.replaying import encoded
from antiphon.text import text_of

TEST = '''"""Replays recorded turns without a network.

Written by: antiphon record {what} --test {file} {agents}
"""

from pathlib import Path

{imports}

from antiphon.testing import replay


def test_{name}():
    replay(Path(__file__).with_suffix(".json")).check({names})
'''
_AGENT = re.compile(r"([\w.]+):(\w+)")


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
        what, name = recording.turn_id, f"turn_{recording.turn_id[:8]}"
    else:
        what, name = f"--session {shlex.quote(recording.session_id)}", "session"
    text = TEST.format(
        what=what,
        name=name,
        file=file.name,
        agents=" ".join(f"--agent {one}" for one in agents),
        imports="\n".join(f"from {one[1]} import {one[2]}" for one in found),
        names=", ".join(one[2] for one in found),
    )
    try:
        file.write_text(text)
        file.with_suffix(".json").write_bytes(encoded(recording) + b"\n")
    except OSError as exc:
        raise UsageError(f"{file} cannot be written: {exc.strerror}.") from exc
    print(file)
