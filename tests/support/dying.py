"""An App whose worker processes die: the n-th one at its n-th call of a script, before or after the call is sent."""

import os
import signal
from pathlib import Path
from typing import Any

from support.stage import Stage, make_app

from antiphon.wire.cell import Cell

APP = "support.dying:app"
STARTS_WITH = 6
"""Calls until a process takes turns. A process that dies earlier is restarted with a delay."""


def die_at_calls(folder: Path, most: int) -> None:
    """Let each process take the next number, and die at that call of a script, until ``most`` have died."""
    calls, number = 0, 0
    run = Cell.run

    async def counted(cell: Cell, *asked: Any) -> Any:
        nonlocal calls, number
        if "ANTIPHON_WORKER_NAME" not in os.environ:  # the supervisor
            return await run(cell, *asked)
        number = number or _next_number(folder)
        calls += 1
        dies = number <= most and calls == number + STARTS_WITH
        if dies and number % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await run(cell, *asked)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Cell.run = counted  # type: ignore[method-assign]


def _next_number(folder: Path) -> int:
    with (folder / "processes").open("ab", buffering=0) as file:
        file.write(b".")
        return file.tell()


if "STAGE" in os.environ:  # a worker process
    folder = Path(os.environ["STAGE"])
    die_at_calls(folder, int(os.environ["DEATHS"]))
    app = make_app(Stage(folder))
