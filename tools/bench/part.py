"""``python -m bench.part NAME ROUNDS full|quick FILE``: measure one part, and write its result as JSON.

A part is a process of its own, so that one that hangs or breaks is ended with all that it started and the next begins.
"""

from __future__ import annotations

import importlib
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

import msgspec
import uvloop
from support.network import forbid_other_machines

from bench.results import Plan, Result, in_short


def main(name: str, rounds: str, size: str, file: str) -> None:
    signal.signal(signal.SIGTERM, _leave)
    forbid_other_machines()
    plan = Plan(int(rounds), size == "quick")
    try:
        result: Result = uvloop.run(importlib.import_module(f"bench.{name}").measure(plan))
    except Exception as exc:  # noqa: BLE001 - its last line is what the table says
        traceback.print_exc()
        print(f"{type(exc).__name__}: {in_short(str(exc))}", file=sys.stderr)
        raise SystemExit(1) from None
    Path(file).write_bytes(msgspec.json.encode(result))


def _leave(number: int, _: FrameType | None) -> None:
    """Leave through every ``finally``, so that all processes end."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
