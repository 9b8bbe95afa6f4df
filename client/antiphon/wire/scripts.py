"""Reads the Lua scripts from their files, joins them with their includes, and runs them by their hash.

A script's header is its contract: ``-- @args`` names its arguments in order (a last one with ``...`` takes the rest),
``-- @include`` names the shared pieces that it needs, and ``-- -> WORD, value, [value], values...  explanation`` each
outcome with its values; values in brackets may be missing. A script is addressed by the hash of its text, so two
releases on one Redis each run their own.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Protocol

from redis.exceptions import NoScriptError

from antiphon.input.request import WITH_FILES
from antiphon.input.values import EVENTS_TTL_SECONDS
from antiphon.wire.connection.moved import Followed
from antiphon.wire.joining import joined
from antiphon.wire.keys import RQ, Keys, lua_shared_keys

KEEP_TURN_SECONDS = 7 * 24 * 3600
KEEP_JOB_SECONDS = 3600
"""How long RQ's record of a finished or cancelled turn is kept. The record of a failed turn is kept with the turn."""
HASH_LIVES_ON_MS = 3600 * 1000
"""How much longer a session's hash lives than its other keys, so that no seq is reused while an event is kept."""

LOSSY = frozenset({"conversations/history", "emit", "limits/admit", "limits/limit", "renew", "snapshot"})
"""Scripts whose answers promise nothing: they only read, or the writes that a failover loses are made again."""

MOST_VALUES = 1_000_000
"""The most values in an answer that ends with any number of them."""

_FOLDER = resources.files("antiphon.wire") / "lua"
_CONSTANTS = f"""\
local DEPLOYMENT = string.match(PREFIX, '^[^:]+')
local WITH_FILES = '{WITH_FILES}'
local KEEP_TURN_SECONDS, KEEP_JOB_SECONDS = {KEEP_TURN_SECONDS}, {KEEP_JOB_SECONDS}
local HASH_LIVES_ON_MS, EVENTS_TTL_MS = {HASH_LIVES_ON_MS}, {EVENTS_TTL_SECONDS * 1000}
{lua_shared_keys()}"""


@dataclass(frozen=True, slots=True)
class Script:
    """One script, ready to run. ``arguments`` are the names in the order they are passed in, and
    ``outcomes`` contains how many values may follow each word of an answer."""

    name: str
    arguments: tuple[str, ...]
    outcomes: dict[bytes, range]
    source: str
    sha: str

    def has_outcome(self, answer: Any) -> bool:
        """Return whether the header declares the word of an answer with this number of values."""
        match answer:
            case [bytes(word), *values]:
                return len(values) in self.outcomes.get(word, ())
            case _:
                return False


def script_names() -> list[str]:
    """Return the names of all scripts."""
    return sorted(
        entry.name.removesuffix(".lua") for entry in _FOLDER.iterdir() if entry.name.endswith(".lua")
    )


class Place(Protocol):
    """Where scripts run: a `Cell`."""

    redis: Any
    keys: Keys
    database: int
    clock: str


@cache
def load_script(name: str, clock: str = "clock", cluster: bool = False) -> Script:
    """Read and join one script. ``clock`` names the include that returns the time; a ``cluster`` has its own text."""
    body = (_FOLDER / f"{name}.lua").read_text()
    arguments = tuple(_header(body, "args").split())
    includes = [clock, *_header(body, "include").split()]
    pieces = [(_FOLDER / "include" / f"{piece}.lua").read_text() for piece in includes]
    source = "\n".join(
        [
            "local PREFIX, DB = ARGV[1], ARGV[2]",
            _bind(arguments),
            joined("".join([_CONSTANTS, *pieces]), body),
        ]
    )
    if cluster:
        source = _on_cluster(source)
    return Script(name, arguments, _outcomes(body), source, hashlib.sha1(source.encode()).hexdigest())


async def run_script(cell: Place, name: str, *arguments: Any) -> Any:
    """Run a script in a cell by its hash; send its text if the server does not know it.

    If the cell has moved since the call began, the script of the new place runs with the names of that place.
    """
    while True:
        keys = cell.keys
        script, redis = load_script(name, cell.clock, keys.tag != ""), cell.redis
        passed = (*keys.declared, keys.prefix, cell.database, *arguments)
        promises = name not in LOSSY
        try:
            try:
                return await redis.execute_command("EVALSHA", script.sha, *passed, promises=promises)
            except NoScriptError:
                if cell.keys is keys:
                    return await redis.execute_command("EVAL", script.source, *passed, promises=promises)
        except Followed:
            continue


def given(value: int | None) -> int | str:
    """Return an optional argument as scripts take it: '' if it is left out."""
    return "" if value is None else value


def _on_cluster(source: str) -> str:
    """Return the text for a cell of a cluster: RQ's keys have its hash tag, and its channels are on its node only."""
    text = source.replace(f"'{RQ}:", "RQ .. '").replace("'PUBLISH'", "'SPUBLISH'")
    return f"local RQ = '{RQ}:' .. string.match(ARGV[1], '{{%d+}}$') .. ':'\n{text}"


def _outcomes(body: str) -> dict[bytes, range]:
    found: dict[bytes, range] = {}
    for word, text in re.findall(r"^-- -> ([A-Z_]+)(.*)", body, re.MULTILINE):
        values = re.sub(r"\([^()]*\)", "", text.split("  ")[0]).split(", ")[1:]
        most = MOST_VALUES if "..." in text else len(values)
        least = sum(not one.startswith("[") and not one.endswith("...") for one in values)
        known = found.get(word.encode(), range(least, most + 1))
        found[word.encode()] = range(min(known.start, least), max(known.stop, most + 1))
    return found


def _header(body: str, word: str) -> str:
    found = re.search(rf"^-- @{word}[ \t]*([^\n]*)", body, re.MULTILINE)
    return found.group(1).split("   ")[0] if found else ""


def _bind(arguments: tuple[str, ...]) -> str:
    """Return Lua that names the arguments; the first two are the prefix and the database."""
    single = [name for name in arguments if not name.endswith("...")]
    lines: list[str] = []
    if single:
        values = ", ".join(f"ARGV[{n}]" for n in range(3, 3 + len(single)))
        lines.append(f"local {', '.join(single)} = {values}")
    if len(single) < len(arguments):
        rest = arguments[-1].removesuffix("...")
        lines.append(f"local {rest} = {{}}")
        lines.append(f"for n = {3 + len(single)}, #ARGV do {rest}[#{rest} + 1] = ARGV[n] end")
    return "\n".join(lines)
