"""What processes of different releases share, frozen in ``tests/protocol/wire.json``: ``make wire`` adds what is new.

Keys, events, stored records, fields of hashes, jobs, commands and codes. CONTRIBUTING.md has the rule for changing
them. Arguments and answers of scripts are no part of it: a script is called by the hash of its text, so each release
runs its own.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import msgspec
from support.lua_fields import fields_of_scripts

from antiphon.errors import AgentError
from antiphon.events import KnownEvent
from antiphon.input.request import KNOWN, TurnRequest
from antiphon.input.values import Keep, Priority
from antiphon.model import Status
from antiphon.session.saved import VERSION, SavedSession
from antiphon.wire.keys import CHANNELS, KINDS, PREFIX, RQ, RQ_KEYS
from antiphon_worker.loop.steps import JournalEntry
from antiphon_worker.process.control import Command, Control
from antiphon_worker.rq.advertised import AppParts
from antiphon_worker.rq.foreign_jobs import OPTIONS

FROZEN = Path(__file__).parents[1] / "protocol" / "wire.json"
RULE = "CONTRIBUTING.md, “How the wire format is changed”, has the rule"
NEW = (
    "A worker that must know it to run a turn has to see a higher version (antiphon.input.request). Then freeze it "
    f"with `make wire`. {RULE}."
)

Wire = dict[str, dict[str, Any]]
"""Sections of names, each with what it stands for."""


def wire() -> Wire:
    """The wire as the code has it."""
    records = _records(TurnRequest, JournalEntry, SavedSession, AppParts)
    events = _records(KnownEvent)
    kinds = {one.__name__: one.__struct_config__.tag for one in get_args(KnownEvent)}
    return {
        "keys": {kind.name: f"{kind.type} {PREFIX}:{kind.template}" for kind in KINDS},
        "channels": {name: f"{PREFIX}:{template}" for name, template in CHANNELS.items()},
        "keys of RQ": {name: f"{RQ}:{template}" for name, template in RQ_KEYS.items()},
        "fields of hashes and streams": {
            f"{kind} {name}": True for kind, names in fields_of_scripts().items() for name in names
        },
        "events": {f"{kinds[name]} {field}": form for (name, field), form in events.items() if name in kinds},
        "records": {
            f"{name} {field}": form for (name, field), form in {**records, **events}.items() if name not in kinds
        },
        "versions": {**KNOWN, "saved session": VERSION},
        "job": {"data": _job_data(), **{f"option {name}": True for name in OPTIONS}},
        "commands": {name: _fields_of_command(name) for name in _commands()},
        "words": {
            **{f"status {word}": True for word in get_args(Status)},
            **{f"keep {word}": True for word in get_args(Keep)},
            **{f"priority {word}": True for word in get_args(Priority)},
            **{f"code {code}": True for code in _codes(AgentError)},
        },
    }  # fmt: skip


def frozen() -> Wire:
    """The wire as it was frozen."""
    return json.loads(FROZEN.read_text())


def complaints(before: Wire, now: Wire) -> list[str]:
    """What would harm a process of an earlier release, in sentences that say what to do."""
    return [
        f"{section}: {name!r} was {_shown(form)} and {_become(now.get(section, {}), name)}. Earlier releases "
        f"rely on it: leave it as it is, and put what is new under a new name. {RULE}."
        for section, names in before.items()
        for name, form in names.items()
        if not _holds(section, form, now.get(section, {}).get(name))
    ]


def additions(before: Wire, now: Wire) -> list[str]:
    """What is new or has risen, by section and name."""
    return [
        f"{section}: {name!r} is {_shown(form)}"
        for section, names in now.items()
        for name, form in names.items()
        if before.get(section, {}).get(name) != form
        and _holds(section, before.get(section, {}).get(name), form)
    ]


def _holds(section: str, before: Any, now: Any) -> bool:
    """Whether what was frozen holds still: versions only rise."""
    if before is None or now is None:
        return before is None
    return now >= before if section == "versions" else now == before


def _become(names: dict[str, Any], name: str) -> str:
    return f"is {_shown(names[name])} now" if name in names else "is gone"


def _shown(form: Any) -> str:
    return "there" if form is True else json.dumps(form)


def _records(*types: Any) -> dict[tuple[str, str], Any]:
    """Each field of these structs, and of those within them, as JSON Schema. A field without default is required."""
    _, components = msgspec.json.schema_components(types)
    return {
        (struct, field): form
        for struct, schema in components.items()
        for field, form in schema.get("properties", {}).items()
    }


def _job_data() -> str:
    text = (resources.files("antiphon.wire") / "lua" / "include" / "rq_view.lua").read_text()
    (data,) = re.findall(r"'data', '(.+?)' \.\. turn \.\. '(.+?)'", text)
    return "<turn>".join(data)


def _commands() -> list[str]:
    return re.findall(r'case "(\w+)":', inspect.getsource(Control._own))


def _fields_of_command(name: str) -> list[str]:
    """The fields that the scripts send with a command and that a worker reads."""
    text = (resources.files("antiphon.wire") / "lua" / "include" / "stop.lua").read_text()
    sent = set(re.findall(r'"(\w+)":', text)) if f'"command":"{name}"' in text else {"command"}
    return sorted(sent & {*Command.__struct_fields__})


def _codes(error: type[AgentError]) -> set[str]:
    """The codes of an error and of those that derive from it, without those that tests define."""
    ours = [one for one in error.__subclasses__() if one.__module__.startswith("antiphon")]
    return {str(error.code)}.union(*map(_codes, ours))


def _sorted(whole: Wire) -> Wire:
    return {section: dict(sorted(names.items())) for section, names in whole.items()}


def text_of(whole: Wire) -> str:
    """The file: each name on a line of its own."""
    sections = [
        f" {json.dumps(section)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(form, sort_keys=True)}" for name, form in names.items()
        )
        + "\n }"
        for section, names in _sorted(whole).items()
    ]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> int:
    """Freeze what is new. What is broken stays: to take it away, delete its line by hand, with a decision."""
    now, before = wire(), frozen() if FROZEN.exists() else {}
    broken = complaints(before, now)
    if broken:
        print("\n".join(broken))
        return 1
    FROZEN.write_text(text_of(now))
    print("\n".join(additions(before, now)) or "Nothing is new.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
