"""Which answers of the scripts, and which transitions of a turn, schedules reach; and why not the others."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "client" / "antiphon" / "wire" / "lua"
CHART = ROOT / "docs" / "states.md"

LIMIT = "no schedule is so long that it reaches this limit"
NOBODY = "nobody asks for a turn that never was"
NEIGHBOUR = "the clients of a schedule keep to the sessions of their own tenant"
STORED = "no tenant has a limit of stored bytes; test_byte_stores.py"
CLOSED = "no client of a schedule closes a session"
UNREACHED: dict[str, str] = {
    "archiving/": "sessions leave Redis by the real clock; test_script_archiving.py moves theirs",
    "count": "figures change no turn; test_script_count.py",
    "conversations/": "they belong to no turn; test_script_conversations.py",
    "memories/": "they change no turn; test_script_memories.py, and the chaos run",
    "count ": "it adds up figures of turns that have ended; test_script_count.py",
    "cancel TURN_NOT_FOUND": NOBODY,
    "decide TURN_NOT_FOUND": NOBODY,
    "requeue TURN_NOT_FOUND": NOBODY,
    "claim SUSPENDED": "nobody runs `rq suspend`; test_script_claim.py",
    "editing/delete OTHER_TENANT": NEIGHBOUR,
    "requeue OTHER_TENANT": NEIGHBOUR,
    "submit OTHER_TENANT": NEIGHBOUR,
    "files/add_chunk OTHER_TENANT": NEIGHBOUR,
    "editing/edit SESSION_CLOSED": CLOSED,
    "requeue SESSION_CLOSED": CLOSED,
    "submit SESSION_CLOSED": CLOSED,
    "files/add_chunk SESSION_CLOSED": CLOSED,
    "steer CONFLICT": "a journal is shorter than its holder knows only where Redis has lost it; test_script_steer.py",
    "files/add_chunk SUPERSEDED": "clients alone add files; test_script_files.py",
    "files/place_file": "contents stay in Redis; chaos/filers.py, test_byte_stores.py",
    "files/places": "contents stay in Redis; chaos/filers.py, test_byte_stores.py",
    "files/read_chunk PLACED": "contents stay in Redis; chaos/filers.py, test_byte_stores.py",
    "schedules/of_event": "no event starts a turn; test_event_schedules.py",
    "files/add_chunk TENANT_LIMIT": STORED,
    "editing/fork TENANT_LIMIT": STORED,
    "editing/edit FULL": LIMIT,
    "editing/fork FULL": LIMIT,
    "schedules/write FULL": LIMIT,
    "submit FULL": LIMIT,
    "submit INBOX_FULL": LIMIT,
    "submit OUT_OF_RANGE": LIMIT,
    "webhooks/write FULL": LIMIT,
    "editing/erase_turns": "no user is erased; test_script_erase.py",
    "events/forget_events": "no tenant is erased; test_script_events.py",
    "editing/forget": "nobody deletes the record of one turn; test_script_editing.py",
    "fail_job": "the queues hold turns alone; test_script_fail_job.py",
    "keep_request": "what models receive changes no turn; test_script_keep_request.py",
    "moving/": "sessions stay in one cell; test_moving_cells.py",
    "wake": "the workers of a schedule keep their revisions; test_script_wake.py",
    "webhooks/take DAMAGED": "turns alone are damaged; test_script_webhooks.py",
}
"""By prefix of ``<script> <answer>``: why no schedule reaches it, and what tests it instead."""
WAYS_UNREACHED = {
    (ended, "[*]"): "Redis drops turns by the real clock" for ended in ("finished", "failed", "cancelled")
}


def declared() -> set[str]:
    """Return every answer that a script's header declares: ``<script> <answer>``."""
    return {
        f"{path.relative_to(SCRIPTS).with_suffix('')} {word}"
        for path in SCRIPTS.rglob("*.lua")
        for word in re.findall(r"^-- -> ([A-Z_]+)", path.read_text(), re.MULTILINE)
    }


def chart() -> set[tuple[str, str]]:
    """Return every transition of a turn: from which status to which."""
    return set(re.findall(r"^\s+(\S+) --> ([\w*[\]]+)", CHART.read_text(), re.MULTILINE))


def reason(answer: str) -> str:
    """Return why schedules do not reach an answer, or ''."""
    return next((why for start, why in UNREACHED.items() if answer.startswith(start)), "")


def wrong(answers: set[str], ways: set[tuple[str, str]]) -> list[str]:
    """Return what was not reached without a reason, and which reasons are outdated."""
    all_answers, all_ways = declared(), chart()
    missing = [*sorted(one for one in all_answers - answers if not reason(one))]
    missing += [" --> ".join(way) for way in sorted(all_ways - ways - WAYS_UNREACHED.keys())]
    stale = [one for one in sorted(answers) if reason(one)]
    stale += [start for start in UNREACHED if not any(one.startswith(start) for one in all_answers)]
    return [
        *(f"{one} is not reached" for one in missing),
        *(f"{one} is reached, or is not there" for one in stale),
    ]


def table(answers: set[str], ways: set[tuple[str, str]]) -> str:
    """Return as text what was reached and what was not."""
    lines = [
        f"{answer:<36} {'reached' if answer in answers else reason(answer) or 'NOT REACHED'}"
        for answer in sorted(declared())
    ]
    lines += [
        f"{' --> '.join(way):<36} {'taken' if way in ways else WAYS_UNREACHED.get(way, 'NOT TAKEN')}"
        for way in sorted(chart())
    ]
    return "\n".join(lines)
