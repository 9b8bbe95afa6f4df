"""Which options of a turn each interface has, read from the interface itself."""

import re
from pathlib import Path

from antiphon.cli.getting_started import parsers
from antiphon.input.options import (
    LIST_OPTIONS,
    SESSION_OPTIONS,
    ListOptions,
    OpeningOptions,
    Option,
    declared,
)
from antiphon.redis.failed import FILTERS, FailedFilter
from antiphon.session.work import OPTIONS, ClientSubmitOptions, RunOptions, SubmitOptions
from antiphon_gateway.interface.bodies import CreateSession, Edit, ListQuery, Regenerate, SetSchedule, Submit
from antiphon_gateway.interface.turns import FailedQuery, RequeueMany
from antiphon_worker.rq.foreign_jobs import OPTIONS as JOB_OPTIONS

NODE = Path("client/node/src")
COMMANDS = {
    "schedules add": "schedule",
    "submit": "submit",
    "chat": "chat",
    "batch": "batch",
    "run": "local",
}


def surfaces(root: Path) -> dict[str, tuple[str, set[str]]]:
    """Return the options of each place, with the interface it belongs to."""
    types = (root / NODE / "types.d.ts").read_text()
    jobs = (root / NODE / "generated.js").read_text().partition("JOB_OPTIONS = {")[2].partition("\n}")[0]
    found: dict[str, tuple[str, set[str]]] = {
        "Client.submit": ("client", {*ClientSubmitOptions.__annotations__}),
        "Session.submit": ("session", {*SubmitOptions.__annotations__}),
        "Session.run": ("run", {*RunOptions.__annotations__}),
        "POST turns": ("http", {*Submit.__struct_fields__}),
        "PUT messages": ("revision", {*Edit.__struct_fields__}),
        "POST regenerate": ("revision", {*Regenerate.__struct_fields__}),
        "PUT schedules": ("schedule", {*SetSchedule.__struct_fields__}),
        "jobs": ("job", {*JOB_OPTIONS}),
        "Node on Redis": ("job", {*re.findall(r"^  (\w+):", jobs, re.MULTILINE)}),
        "Node over HTTP": ("http", _fields(types, "TurnOptions") | _fields(types, "SubmitOptions")),
    }
    for name, parser in parsers():
        if name in COMMANDS:
            flags = {flag[2:].replace("-", "_") for flag in parser._option_string_actions}
            found[f"antiphon {name}"] = (
                COMMANDS[name],
                flags | ({"agent"} if "provider" in flags else set()),
            )
    return {place: (interface, names & OPTIONS.keys()) for place, (interface, names) in found.items()}


def other_places() -> dict[str, tuple[dict[str, Option], str, set[str]]]:
    """Return the options of sessions and lists at each place, with the options declared for it."""
    flags = {
        name: {flag[2:].replace("-", "_") for flag in parser._option_string_actions}
        for name, parser in parsers()
        if name in ("sessions", "failed", "requeue")
    }
    return {
        "Client.session": (declared(OpeningOptions), "", {*OpeningOptions.__annotations__}),
        "POST /sessions": (SESSION_OPTIONS, "", {*CreateSession.__struct_fields__}),
        "Client.sessions": (LIST_OPTIONS, "", {*ListOptions.__annotations__}),
        "GET /sessions": (LIST_OPTIONS, "", {*ListQuery.__struct_fields__}),
        "antiphon sessions": (LIST_OPTIONS, "sessions", flags["sessions"]),
        "Client.failed": (FILTERS, "", {*FailedFilter.__annotations__}),
        "GET /failed": (FILTERS, "", {*FailedQuery.__struct_fields__}),
        "POST /failed/requeue": (FILTERS, "", {*RequeueMany.__struct_fields__}),
        "antiphon failed": (FILTERS, "", flags["failed"]),
        "antiphon requeue": (FILTERS, "", flags["requeue"]),
    }


def _fields(types: str, interface: str) -> set[str]:
    text = types.partition(f"export interface {interface} ")[2].partition("\n}")[0]
    return {*re.findall(r"^  (\w+)\?:", text, re.MULTILINE)}
